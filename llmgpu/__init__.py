"""llmgpu: train BPE tokenizers and tokenize text on any GPU, or without one."""

__version__ = "0.1.0"
