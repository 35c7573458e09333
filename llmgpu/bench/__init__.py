"""Benchmarks of llmgpu on this machine, next to other programs ("peers").

A wrong answer gets no time: the answers of every engine and peer are compared with those of
the CPU first.
"""
