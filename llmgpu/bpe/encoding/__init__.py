"""Turning text into ids: byte pair encoding and greedy matching, on NumPy and on a GPU."""
