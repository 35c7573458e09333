"""The CPU engine: C code for work that is slow in NumPy. Calls release Python's lock."""
