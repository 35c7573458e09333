"""The operations a model is made of, on a GPU and in NumPy.

A model is a list of operations on tensors whose memory is there before it runs: calling an
operation does not compute anything, it appends to the program that is being recorded. Running the
program carries all of it out, again and again. One module is one family of operations, with its
NumPy and its GPU side next to each other; `operations` puts the families together.

Shapes are written with: B sequences in a batch, T tokens in a sequence, N = B * T rows, C width of
the model, H heads, K key/value heads, D width of a head, F width inside the feed-forward network,
V entries of the vocabulary.
"""
