"""The distinct pre-tokens of a text, and how often each occurs."""
