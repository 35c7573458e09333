"""The CPU engine: C for work that is slow in NumPy, called without Python's lock."""
