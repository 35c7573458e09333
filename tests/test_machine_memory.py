"""What a job needs, extrapolated from what it has taken; free memory is tested with spilling."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from llmgpu import machine
from llmgpu.machine import Growth, peak_memory, resident_memory


def measure(
    monkeypatch: pytest.MonkeyPatch, resident: Callable[[], object], peak: Callable[[], object]
) -> None:
    monkeypatch.setattr(machine, "resident_memory", resident)
    monkeypatch.setattr(machine, "peak_memory", peak)


def test_growth_is_extrapolated_and_bounds_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [100 << 20]
    measure(monkeypatch, lambda: taken[0], lambda: taken[0])
    growth = Growth()
    assert growth.estimate(None) is None
    estimates = []
    for part in range(1, 17):  # tables that grow with the square root of the text
        taken[0] = (140 << 20) + int(part**0.5 * (20 << 20))
        estimates.append(growth.estimate(16 / part))
    peak = taken[0] - (100 << 20)
    hosts = [estimate.host for estimate in estimates if estimate is not None]
    assert len(hosts) == 16
    assert all(peak <= host for host in hosts[1:])
    assert hosts[1] > hosts[-1] and hosts[-1] <= 2.5 * peak


def test_tables_of_known_size_are_bounded_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [100 << 20]
    measure(monkeypatch, lambda: taken[0], lambda: taken[0])
    growth = Growth()
    taken[0] += 40 << 20  # buffers
    estimates = []
    for part, tables in enumerate((0, 1, 1, 34, 34, 34, 34, 101), 1):  # tables grow in steps
        taken[0] = (140 + tables) << 20
        estimates.append(growth.estimate(8 / part, part << 24, 384 << 20))
    *early, last = [each for each in estimates if each is not None]
    assert {each.host for each in early} == {(8 + 40 + 384) << 20}
    peak = taken[0] - (100 << 20)
    assert all(0.5 * peak <= (each.likely or 0) <= 2 * peak for each in early)
    assert last.likely is None and last.host == peak + (8 << 20)
    taken[0] += 600 << 20  # tables don't take so much: other memory grows with the text
    more = growth.estimate(2.0, 1 << 27, 384 << 20)
    assert more is not None and more.host > 2 * (600 << 20)


def test_where_nothing_tells_there_is_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    measure(monkeypatch, lambda: None, lambda: None)
    assert Growth().estimate(1.0) is None


def test_resident_memory_grows() -> None:
    before = resident_memory()
    if before is not None:
        held = np.ones(64 << 20, np.uint8)  # more than is kept from earlier arrays
        after = resident_memory()
        assert after is not None and len(held) <= after - before + (1 << 20)


def test_a_peak_between_two_estimates_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    peak = [300 << 20]  # before the job
    measure(monkeypatch, lambda: 100 << 20, lambda: peak[0])
    growth = Growth()
    before = growth.estimate(1.0)
    assert before is not None and before.host < 10 << 20
    peak[0] = 400 << 20
    after = growth.estimate(1.0)
    assert after is not None and 300 << 20 <= after.host < 500 << 20
    assert (peak_memory() or 1 << 60) >= (resident_memory() or 0)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems don't limit address space")
@pytest.mark.parametrize("spare", [0, 16 << 20])
def test_threads_start_only_where_the_address_space_has_room_for_them(spare: int) -> None:
    code = f"""
import resource, threading
from llmgpu.machine import has_room_for_thread
from llmgpu.pipeline import Background, in_order
print(has_room_for_thread())
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + {spare}, resource.RLIM_INFINITY))
print(has_room_for_thread())
here = threading.get_ident()
print(set(in_order(range(9), lambda job: threading.get_ident() == here, 4)))
with Background() as background:
    background.start(lambda: print(threading.get_ident() == here))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "{True}", "True"]
