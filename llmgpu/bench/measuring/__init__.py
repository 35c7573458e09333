"""Who is measured, on what machine, by which clock, and what its memory and arithmetic can do."""
