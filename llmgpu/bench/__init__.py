"""Measurements of llmgpu on this machine, and of its peers beside it.

No time is given for a wrong answer: every engine's result is compared first, llmgpu's engines with
NumPy's and the peers' as far as they compute the same thing.
"""
