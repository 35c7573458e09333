"""The distinct pre-tokens of a text, with their numbers of occurrences."""
