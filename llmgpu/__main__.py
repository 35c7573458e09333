"""Run the command line with ``python -m llmgpu``."""

from llmgpu.cli import main

if __name__ == "__main__":
    main()
