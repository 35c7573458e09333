"""Training tokenizers and tokenizing, beside the tools that do the same."""
