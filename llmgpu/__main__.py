"""Run the command line with ``python -m llmgpu``, or as the script ``llmgpu``."""

import gc
import os
import signal
from types import FrameType


def main() -> None:
    """Run the command line; an interrupt while it is being imported ends the process quietly.

    An interrupted process ends with its exit code at once: left to itself, Python sends itself
    SIGINT where the interrupt, of any signal, had come through code that a library generates.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    from llmgpu.cli import main as run

    try:
        run()
    except SystemExit as end:
        if isinstance(end.code, int) and end.code > 128:
            from llmgpu.cli.interrupts import end_process

            end_process(end.code)
        gc.freeze()  # else Python looks for garbage among all objects before it ends
        raise


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    main()
