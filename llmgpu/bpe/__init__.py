"""BPE: pre-tokenization, training, vocabularies and tokenizing."""
