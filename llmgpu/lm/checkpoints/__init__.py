"""Checkpoints: folders of safetensors and JSON files, which Hugging Face transformers can open."""
