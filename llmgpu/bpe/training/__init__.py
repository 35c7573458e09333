"""Learning merges from words: the trainers and the code that they share."""
