"""Training steps of language models."""
