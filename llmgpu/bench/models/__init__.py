"""Embedding lookups, kernels and training steps of language models, beside PyTorch."""
