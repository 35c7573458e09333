"""Run the command line with ``python -m llmgpu``, or as the script ``llmgpu``."""

# A signal that comes before the handler below is set prints a traceback. So only the modules that
# the handler needs are imported first. `_signal` is one of them, since `signal` takes milliseconds.
import _signal  # type: ignore[import-not-found]
import os
import sys

TYPE_CHECKING = False  # like `typing.TYPE_CHECKING`, without importing typing
if TYPE_CHECKING:
    from types import FrameType


def _leave(number: int, frame: "FrameType | None") -> None:
    try:
        from llmgpu.errors import interrupted_line

        line = interrupted_line(128 + number)
    except Exception:  # the signal came while Python imported this module or json
        line = "interrupted"
    try:
        if sys.stderr is not None:  # otherwise descriptor 2 may belong to another file
            os.write(2, f"{line}\n".encode())
    except OSError:
        pass
    os._exit(128 + number)


def _leave_on_interrupt() -> None:
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _leave)


if __name__ == "__main__" or os.path.basename(sys.argv[0]).partition(".")[0] == "llmgpu":
    _leave_on_interrupt()


def main() -> None:
    """Run the command line. An interrupt before or after the command ends the process at once.

    If the command was interrupted, this function ends the process with the exit code of that
    interrupt. If the interrupt was raised inside code that a library compiled at run time, Python
    would otherwise end the process with SIGINT, even after another signal.
    """
    _leave_on_interrupt()
    import atexit
    import faulthandler
    from contextlib import suppress

    from llmgpu.machine import set_blas_variables

    # Report crashes of drivers, except on Windows: there, faulthandler would also report errors
    # that drivers handle.
    if os.name == "posix":
        # Standard error may be missing or closed.
        with suppress(AttributeError, OSError, RuntimeError, ValueError):
            faulthandler.enable()
    set_blas_variables()
    codes: list[int] = []
    atexit.register(_end_at_once, codes)  # registered first, so called last
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
    """End the process after all other exit handlers have run.

    Python itself would first search all objects for garbage and free the driver's memory block by
    block. The operating system frees the memory faster, and a signal during Python's search would
    kill the process. A worker of MPI exits in Python's way, because MPI signs off after the exit
    handlers.
    """
    if codes and "mpi4py.MPI" not in sys.modules:
        from contextlib import suppress

        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):  # the stream is missing or closed
                stream.flush()
        os._exit(codes[0])


if __name__ == "__main__":
    main()
