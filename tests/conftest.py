"""What all tests share: opened adapters, the state each test starts from, markers, time limits.

Tests that need an adapter are skipped without one, and counted at the end of the run. With
LLMGPU_REQUIRE_GPU=1 they fail instead; with LLMGPU_REQUIRE_PEERS=1 so do those that can't import a
package that they compare with.
"""

from __future__ import annotations

import os

# One thread for each test process: they run side by side. Read when NumPy and the driver load. The
# software adapter then runs kernels in the thread that submits them, which wakes no other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("LP_NUM_THREADS", "0")

import gc
import importlib.metadata
import logging
import random
import signal
import sys
import tempfile
import tomllib
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.runner import runtestprotocol
from hypothesis import settings

from llmgpu.backend import list_adapters
from llmgpu.bpe.encoding.encoder_gpu import GpuEncoder
from llmgpu.bpe.plain import recount_gpu
from llmgpu.bpe.training import batched_gpu
from llmgpu.bpe.words import word_table_gpu
from llmgpu.bpe.words.count_gpu import GpuWordCounter
from llmgpu.errors import LlmgpuError
from llmgpu.gpu.adapters import (
    OPTIONAL_FEATURES,
    WEBGPU_DEFAULT_LIMITS,
    AdapterInfo,
    OpenedAdapter,
    load_driver,
    select_adapter,
)
from llmgpu.gpu.adapters import list_adapters as list_gpu_adapters
from llmgpu.gpu.device import Device
from llmgpu.gpu.driver import MATRIX_FEATURE
from tests.engines import ENGINES, CEngine, DeviceEngine, Engine, NumpyEngine
from tests.gpu.guarded import GuardedDevice
from tests.harness.devices import open_device

ROOT = Path(__file__).parents[1]
# For processes that run this checkout, with the packages that this one finds.
PYTHON_PATH = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
NOBODY = 65534
SLOW_SECONDS = 900  # time limit of a test marked slow; of the others: see pyproject.toml
FIRST_WORDS = 1 << 13  # of word tables of devices
PAIR_SLOTS = 1 << 13  # of the first table of pairs that are counted again for each merge
GROUPS = 8  # workgroups that share a table of words or of pairs
MAX_WORKERS = 16  # each of them opens the adapter
# Examples of a property test in `make test`, and in `make test-slow`, which runs them all again.
QUICK_EXAMPLES, FULL_EXAMPLES = 6, 30
GARBAGE = 20_000  # new objects before a garbage collection; by default 700: 19,000 in a run
gc.set_threshold(GARBAGE)  # thousands of tests that are collected are no garbage
NO_ADAPTER = "no adapter; install a Vulkan driver"
NO_DAWN = "Dawn lists no adapter; see scripts/get_swiftshader.sh"
_GUARDED: list[GuardedDevice] = []  # opened by tests so far: one, or none


def examples(count: int = FULL_EXAMPLES) -> int:
    """Return how many examples a property test has that takes `count` of them in a full run."""
    wanted = int(os.environ.get("LLMGPU_TEST_EXAMPLES", QUICK_EXAMPLES))
    return max(1, count * wanted // FULL_EXAMPLES)


settings.register_profile(
    "llmgpu",
    max_examples=examples(),
    deadline=None,
    derandomize="CI" in os.environ,
)
settings.load_profile("llmgpu")


def pytest_configure() -> None:
    """Make float errors exceptions, and interrupts reach the processes that tests start."""
    np.seterr(all="raise")
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # started in the background by a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return the number of workers for ``-n auto``: one for each core, within limits."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return min(cores or 1, MAX_WORKERS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests more time, and skip comparisons with another version of `regex`."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))
        if item.get_closest_marker("pinned_regex") and (reason := other_regex()):
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over thousands of tests that stay until the end."""
    gc.freeze()


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Let a worker of pytest-xdist send one report of a test that passes instead of three.

    Sending a report and reading it take as long as all else of a phase. Reports of passed set-ups
    and teardowns are used by ``--durations`` alone.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ or item.config.getoption("durations") is not None:
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail tests that were skipped for want of a package, where all of them must be there."""
    report = yield
    missing = report.skipped and "could not import" in str(report.longrepr)
    if missing and os.environ.get("LLMGPU_REQUIRE_PEERS") == "1":
        report.outcome = "failed"
        report.longrepr = f"LLMGPU_REQUIRE_PEERS=1: {report.longrepr}"
    return report


@cache
def other_regex() -> str:
    """Return why `regex` may know another Unicode than llmgpu; empty: it is the pinned one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (pinned,) = project["optional-dependencies"]["regex"]
    installed = f"regex=={importlib.metadata.version('regex')}"
    return "" if installed == pinned else f"compares Unicode with {pinned}, here is {installed}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests did not run because there is no adapter."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = [report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple)]
    for missing in (NO_ADAPTER, NO_DAWN):
        count = sum(missing in reason for reason in reasons)
        if count:
            terminalreporter.section("NOT A FULL RUN", yellow=True)
            terminalreporter.line(f"{count:,} tests did not run: {missing}.")


def by_nobody(call: Callable[[], object]) -> str:
    """Call in a child, as a user who is not root; return the result or the error as text.

    The child can be sure to see the fixture `open_folder` and the current folder, not that of
    pytest; what it needs has to be imported already.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if IS_ROOT:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            said = str(call())
        except LlmgpuError as error:
            said = f"error: {error}"
        except BaseException as error:
            said = repr(error)
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may reach and write."""
    with tempfile.TemporaryDirectory(prefix="llmgpu-") as name:
        os.chmod(name, 0o777)
        yield Path(name)


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The messages of all warnings and errors that are logged."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handler, "emit", lambda record: messages.append(record.getMessage()))
        logging.root.addHandler(handler)
        yield messages
        logging.root.removeHandler(handler)


@cache
def _has_adapter() -> bool:
    return bool(list_adapters())  # 1.4 ms, for thousands of tests


def require_adapter() -> None:
    """Skip the test where there is no adapter, or fail it where there must be one."""
    if _has_adapter():
        return
    if os.environ.get("LLMGPU_REQUIRE_GPU") == "1":
        pytest.fail("LLMGPU_REQUIRE_GPU=1, and there is no adapter")
    pytest.skip(NO_ADAPTER)


@pytest.fixture(scope="session")
def dawn_device() -> Iterator[Device]:
    """The best adapter that Dawn lists, with all that it has."""
    pytest.importorskip("wgpudawn")
    adapters = list_gpu_adapters(load_driver("dawn"))
    if not adapters:
        pytest.skip(NO_DAWN)
    yield Device(OpenedAdapter(adapters[0]))


@pytest.fixture(scope="session")
def null_device() -> Any:
    """Dawn's device that compiles everything and runs nothing; it needs no adapter."""
    wgpudawn = pytest.importorskip("wgpudawn")
    driver = load_driver("dawn")
    driver.list_handles()  # makes the instance
    adapters = wgpudawn.gpu._enumerate_all_adapters()
    null = next(each for each in adapters if each.info["backend_type"] == "Null")
    return driver.open(null, frozenset({"subgroup", "shader-f16", MATRIX_FEATURE}), {})


# Hooks, and no fixtures that all tests use: a fixture of a test costs more than all that they do.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed the global random generators, so that no test depends on those before it."""
    random.seed(0)
    np.random.seed(0)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Check that no kernel wrote after the buffers that the test made: their guard words."""
    for device in _GUARDED:
        device.check_guards()


@pytest.fixture(scope="session", autouse=True)
def nothing_waits_for_the_disk() -> Iterator[None]:
    """Sync no file in this process: what a loss of power leaves is no test's subject.

    That files are synced, and when, is seen by tests that put a function of their own there.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def tables_are_small_at_first() -> Iterator[None]:
    """Let tables of devices begin small and grow, and few workgroups share each of them.

    Software takes long for slots and workgroups without a word or a pair.
    """
    with pytest.MonkeyPatch.context() as patch:
        for function, name, size in (
            (GpuEncoder.__init__, "first_words", FIRST_WORDS),
            (GpuWordCounter.__init__, "first_words", FIRST_WORDS),
            (recount_gpu.train, "table_slots", PAIR_SLOTS),
        ):
            defaults: Any = function.__kwdefaults__
            patch.setitem(defaults, name, size)
        for module in (word_table_gpu, batched_gpu):
            patch.setattr(module, "SOFTWARE_GROUPS", GROUPS)
        yield


@pytest.fixture(scope="session", autouse=True)
def adapters_are_opened_once() -> Iterator[None]:
    """Let tests and commands in this process share opened adapters and compiled kernels.

    Software compiles kernels slowly. All else is a device's own: buffers, transfers, times. Devices
    with other features or limits share nothing.
    """
    opened: dict[tuple[str, str], OpenedAdapter] = {}
    kernels: dict[int, Any] = {}  # of devices without guard words, by the opened adapter
    open_adapter, make_device = OpenedAdapter.__init__, Device.__init__

    def open_adapter_once(
        self: OpenedAdapter,
        adapter: AdapterInfo,
        features: frozenset[str] = OPTIONAL_FEATURES,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        if features != OPTIONAL_FEATURES or limits:
            open_adapter(self, adapter, features, limits)
            return
        name = (adapter.webgpu.name, str(adapter))
        if name not in opened:
            open_adapter(self, adapter)
            opened[name] = self
        vars(self).update(vars(opened[name]))

    def open_device(self: Device, *given: Any, **named: Any) -> None:
        make_device(self, *given, **named)
        if type(self) is Device and any(each.handle is self.handle for each in opened.values()):
            self._kernels = kernels.setdefault(id(self.handle), self._kernels)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpenedAdapter, "__init__", open_adapter_once)
        patch.setattr(Device, "__init__", open_device)
        yield


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    """The best adapter with all that it has."""
    require_adapter()
    yield open_device()


@pytest.fixture(scope="session")
def portable_device() -> Iterator[Device]:
    """The same adapter with WebGPU's default limits, no optional feature, and guard words."""
    require_adapter()
    opened = OpenedAdapter(select_adapter(), frozenset(), WEBGPU_DEFAULT_LIMITS)
    _GUARDED.append(GuardedDevice(opened))
    yield _GUARDED[0]


@pytest.fixture(scope="session", params=["full", "portable"])
def any_device(request: pytest.FixtureRequest) -> Device:
    """Both of them, one after the other."""
    name = "device" if request.param == "full" else "portable_device"
    found: Device = request.getfixturevalue(name)
    return found


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each of the engines that count, train and encode, one after the other."""
    if request.param != "gpu":
        return CEngine() if request.param == "c" else NumpyEngine()
    return DeviceEngine(request.getfixturevalue("device"))
