"""The operations that language models are made of.

A model is a list of operations on tensors that are allocated before it runs: calling an operation
computes nothing, it appends to the program being recorded. Running the program carries out all of
it, again and again.

Each family of operations has a module. Its first class computes with NumPy and declares the
operations; its second class overrides all of them by kernels of a GPU. `operations` puts the
families together, and has the operations of the CPU engine.

Shapes are written with: B sequences in a batch, T tokens in a sequence, N = B * T rows, C width of
the model, H heads, K key/value heads, D width of a head, F width inside the feed-forward network,
V entries of the vocabulary.
"""
