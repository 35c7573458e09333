"""The operations of which language models consist.

A model is a list of operations on tensors that are allocated before the model runs. Calling an
operation computes nothing; the call appends the operation to the program being recorded. The
program can be run any number of times.

Each family of operations has a module. The first class of a module computes with NumPy and declares
the operations. The second class overrides all operations by kernels of a GPU. `operations` joins
the families and has the operations of the CPU engine.

Shapes are written with: B sequences in a batch, T tokens in a sequence, N = B * T rows, C width of
the model, H heads, K key/value heads, D width of a head, F width inside the feed-forward network, V
entries of the vocabulary.
"""
