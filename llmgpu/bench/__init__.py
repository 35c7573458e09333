"""Measurements of llmgpu on this machine, and of its peers beside it.

No time is given for a wrong answer: every engine's result is compared with NumPy's first, and so is
every peer's.
"""
