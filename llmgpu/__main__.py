"""Run the command line with ``python -m llmgpu``, or as the script ``llmgpu``."""

import atexit
import faulthandler
import os
import signal
import sys
from contextlib import suppress
from types import FrameType

from llmgpu.processors import set_blas_variables


def main() -> None:
    """Run the command line; an interrupt before or after it ends the process at once.

    An interrupted process ends with its exit code at once: left to itself, Python sends itself
    SIGINT where the interrupt, of any signal, had come through code that a library generates.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    if os.name == "posix":  # elsewhere it reports what drivers raise and handle themselves, too
        with suppress(AttributeError, OSError, RuntimeError, ValueError):  # no stderr, or closed
            faulthandler.enable()  # a driver that crashes should not do so in silence
    set_blas_variables()
    codes: list[int] = []
    atexit.register(_end_at_once, codes)  # first, so that it is called last
    from llmgpu.cli import main as run

    try:
        run()
    except SystemExit as end:
        if isinstance(end.code, int) and end.code > 128:
            from llmgpu.cli.interrupts import end_process

            end_process(end.code)
        if isinstance(end.code, int):
            codes.append(end.code)
        raise


def _end_at_once(codes: list[int]) -> None:
    """End the process once all else is done that is to be done at its end.

    Left to itself, Python looks for garbage among all objects, frees what a driver holds piece by
    piece, which the system does faster, and is killed by a signal meanwhile. A worker of several
    has to take leave of the others, which MPI does after that.
    """
    if codes and "mpi4py.MPI" not in sys.modules:
        _flush_and_leave(codes[0])


def _flush_and_leave(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # there is none, or it is closed
            stream.flush()
    os._exit(code)


def _leave(number: int, frame: FrameType | None) -> None:
    if sys.stderr is not None:  # else 2 may be another file
        with suppress(OSError):
            os.write(2, b"interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    main()
