"""Cutting text into pre-tokens: the patterns, on NumPy and on a GPU."""
