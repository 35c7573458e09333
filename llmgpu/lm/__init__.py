"""Language models of the Llama kind: the model, its training, its checkpoints, its sampling.

The model (`model`) is written once, as operations on tensors (`ops`). A GPU or NumPy computes the
operations.
"""
