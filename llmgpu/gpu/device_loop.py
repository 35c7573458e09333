"""Loops whose state stays on the device: many rounds in a submission, two submissions in flight.

The host reads only the state that a submission leaves, so the device never waits for it, and it
chooses how many rounds the next submission holds, so that progress and Ctrl-C are not kept waiting.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.gpu.adapters import Buffer
from llmgpu.gpu.commands import Commands
from llmgpu.gpu.device import Device
from llmgpu.gpu.transfer import Download

IN_FLIGHT = 2  # submissions


def paced_states(
    device: Device,
    buffer: Buffer,
    dtype: np.dtype[np.void],
    record: Callable[[Commands], None],
    *,
    running: Collection[int],
    seconds: float,
    first_rounds: int,
    most_rounds: int,
) -> Iterator[tuple[NDArray[Any], bool]]:
    """Submit rounds until the loop halts; yield the state after each submission, in order.

    buffer: the state on the device, one element of `dtype`, whose field "status" tells how the loop
        stands. record: records one round, which does nothing once the loop has halted.
    running: the statuses in which rounds do something.
    seconds: aim for a submission. first_rounds, most_rounds: rounds of the first one and of any.

    Yields (state, is_idle): an array of shape (1,), and whether nothing is in flight. A caller that
    removes what halted the loop, on the device, sets the status in `state` to a running one, too;
    that resumes the loop.
    """
    pending: deque[Download] = deque()
    spare = [Download(device) for _ in range(IN_FLIGHT)]
    rounds, is_running, last = first_rounds, True, time.perf_counter()
    while True:
        while spare and is_running:
            download = spare.pop()
            commands = device.record()
            for _ in range(rounds):
                record(commands)
            download.record(commands, buffer, dtype.itemsize)
            commands.submit()
            download.begin()
            pending.append(download)
        if not pending:
            return
        download = pending.popleft()
        state = np.empty(1, dtype)
        download.finish(state.view(np.uint8))
        spare.append(download)
        now = time.perf_counter()
        rounds = min(_next_rounds(rounds, now - last, seconds), most_rounds)
        last = now
        yield state, not pending
        is_running = int(state["status"][0]) in running


def _next_rounds(rounds: int, took: float, seconds: float) -> int:
    """Return the rounds of the next submission: a change by at most a factor of two."""
    factor = min(2.0, max(0.5, seconds / max(took, 1e-4)))
    return max(1, int(rounds * factor))
