"""Training tokenizers and tokenizing, next to the tools that do the same."""
