"""Learning merges from words: the trainers and their common code."""
