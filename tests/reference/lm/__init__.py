"""What the kernels compute, in float64: slow, obvious, and apart from the NumPy backend."""
