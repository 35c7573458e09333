"""The CPU engine: C for what NumPy is slow at, called without Python's lock."""
