"""The two plain pipelines, kept whole: recount training and greedy longest match."""
