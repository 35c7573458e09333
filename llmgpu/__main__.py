"""Run the command line with ``python -m llmgpu``, or as the script ``llmgpu``."""

import os
import signal
from types import FrameType


def main() -> None:
    """Run the command line; an interrupt while it is being imported ends the process quietly."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    from llmgpu.cli import main as run

    run()


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    main()
