"""Checkpoints, which Hugging Face transformers opens: folders of safetensors and JSON."""
