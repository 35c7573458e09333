"""The operations a model is made of, on a GPU and in NumPy.

A model is a list of operations on tensors that are allocated before it runs: calling an operation
computes nothing, it appends to the program being recorded. Running the program carries out all of
it, again and again. `operations` declares every operation once. Each of the other modules
implements one kind of operation, with its NumPy and its GPU side next to each other, and `backends`
puts the kinds together.

Shapes are written with: B sequences in a batch, T tokens in a sequence, N = B * T rows, C width of
the model, H heads, K key/value heads, D width of a head, F width inside the feed-forward network,
V entries of the vocabulary.
"""
