"""Two simple pipelines, each complete in itself: recount training and greedy longest match."""
