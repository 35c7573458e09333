"""Turning text into ids: byte pair encoding on NumPy, on the C engine and on a GPU."""
