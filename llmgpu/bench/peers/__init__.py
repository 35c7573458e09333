"""Other programs that do the same: tokenizers, and PyTorch for language models."""
