"""Kill a process wherever a save of a checkpoint asks something of the file system.

``python -m tests.lm.killed_saves FOLDER``: FOLDER/run-N has checkpoints of steps 1 and 2; a child
process saves step 3 there and kills itself at the Nth call. Ends with the first that is not killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lm.samples import save

CALLS = ("fsync", "rename", "replace", "rmdir", "unlink", "mkdir")
MOST = 100


def die_at_call(number: int) -> None:
    """Let this process kill itself at one of its calls, the first being number 0."""
    left = number

    def killing(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return call(*args, **kwargs)

        return wrapped

    for name in CALLS:
        setattr(os, name, killing(getattr(os, name)))


def kill_at_each_call(begun: Path, job: Callable[[Path], None]) -> None:
    """Do a job in copies of the folder `begun`, killed at call N in the copy run-N beside it."""
    for number in range(MOST):
        run = begun.parent / f"run-{number}"
        shutil.copytree(begun, run)
        child = os.fork()
        if child == 0:
            die_at_call(number)
            job(run)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            return
        if not os.WIFSIGNALED(status):
            raise SystemExit(f"the child ended with {status}")
    raise SystemExit(f"killed {MOST} times")


def main(folder: Path) -> None:
    begun = folder / "begun"
    begun.mkdir()
    save(begun, 1)
    save(begun, 2)
    kill_at_each_call(begun, lambda run: save(run, 3))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
