"""Learning merges from words: the batched trainers, the plain one, and what they have in common."""
