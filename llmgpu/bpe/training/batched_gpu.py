"""The batched trainer on a GPU: the merges of the sequential algorithm, many in one pass.

The algorithm is that of `batched_numpy`, whose head says why it is exact; the kernels are in
wgsl/batched. Nothing is read back between batches: the state of the loop, the list of
high-ranking pairs and the merge log stay on the device. A submission holds many batches, and two
submissions are in flight, so the device does not wait for the host.

A buffer that could overflow in the next batch stops the submission before anything is merged; the
host makes it larger and goes on from there.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import concatenate_ranges
from llmgpu.bpe.training.merges import OnMerges, SymbolMerges
from llmgpu.bpe.training.symbols import SymbolWords
from llmgpu.errors import DeviceError
from llmgpu.gpu import (
    MAX_TIMED,
    BoundKernel,
    Buffer,
    Commands,
    Device,
    Download,
    Kernel,
    constant,
    struct_dtype,
)
from llmgpu.progress import Progress, no_progress

_STATE_FILE, _RANK_FILE = "batched/state.wgsl", "batched/rank.wgsl"
STATE = struct_dtype(_STATE_FILE, "BatchState")
RUNNING, FINISHED, REFILL, FULL, NONE, MAX_BATCH, HOT_CAPACITY = (
    constant(_STATE_FILE, name)
    for name in ("RUNNING", "FINISHED", "REFILL", "FULL", "NONE", "MAX_BATCH", "HOT_CAPACITY")
)
MAX_SYMBOLS = 1 << constant(_RANK_FILE, "SYMBOL_BITS")
BINS, MAX_DIGITS = constant(_RANK_FILE, "BINS"), constant(_RANK_FILE, "MAX_DIGITS")
PAIR_BYTES, ENTRY_BYTES, UNIT_BYTES, LINK_BYTES = (
    struct_dtype(_STATE_FILE, name).itemsize for name in ("Pair", "Entry", "Unit", "Link")
)
CHANGE_BYTES = 16  # a vec4<u32>
BATCHES_PER_REFILL = 32  # what a used-up hot list leaves idle, half of it on average
DISPATCHES = 5 * BATCHES_PER_REFILL + 2 * MAX_DIGITS + 2
SUBMIT_SECONDS = 0.1  # aim for one submission: progress and Ctrl-C come between them
MAX_ROUNDS = 16  # refills, each with its batches, in one submission
GROUPS, SOFTWARE_GROUPS = 512, 64
MAX_SELECT_WORKGROUP = 1024  # divides BINS
BYTES_PER_POSITION = 56  # positions, slots, places and lists, and what is uploaded


@dataclass(frozen=True)
class Capacities:
    """Sizes of the buffers that grow when a batch needs more; numbers of elements."""

    pairs: int = 1 << 18
    listed: int = 1 << 20
    entries: int = 1 << 16
    candidates: int = 1 << 16


def train(
    device: Device,
    words: SymbolWords,
    *,
    merges: int,
    min_frequency: int = 2,
    max_token_length: int | None = None,
    progress: Progress = no_progress,
    on_merges: OnMerges | None = None,
    workgroup_size: int = 256,
    first_capacities: Capacities | None = None,
) -> SymbolMerges:
    """Learn up to `merges` merges from counted words; merge k makes symbol len(words.lengths) + k.

    min_frequency: rarer pairs are not merged; 0 counts as 1.
    max_token_length: bytes that a token has at most.
    on_merges: gets finished merges, a submission's at a time.
    first_capacities: sizes of buffers to begin with; by default they suit the words.

    Raises:
        DeviceError: the words don't fit into the adapter's memory, see `unfit`.
    """
    reason = unfit(device, words, merges)
    if reason is not None:
        raise DeviceError(f"{device.name} can't merge these words: {reason}; use --device cpu")
    if len(words.counts) == 0 or merges == 0:
        none = np.empty(0, np.int64)
        return SymbolMerges(np.empty((0, 2), np.uint32), none, words.total, 0)
    capacities = first_capacities or _suitable(words)
    loop = _BatchedLoop(device, words, merges, workgroup_size, capacities)
    loop.load(words, merges, min_frequency, max_token_length)
    return loop.run(words, merges, progress, on_merges)


def compile_kernels(device: Device, workgroup_size: int = 256) -> dict[str, Kernel]:
    """Compile the trainer's kernels, in threads and once for a device; return them by name."""
    size = {"WORKGROUP_SIZE": workgroup_size}
    largest = device.limits["max-compute-invocations-per-workgroup"]
    one = {"WORKGROUP_SIZE": min(largest, MAX_SELECT_WORKGROUP)}
    requests: list[tuple[str, dict[str, int]]] = [
        ("batched/00_lay_out.wgsl", size),
        ("batched/01_first_pairs.wgsl", size),
        ("batched/02_first_links.wgsl", size),
        ("batched/03_count_ranks.wgsl", size),
        ("batched/04_lower_threshold.wgsl", one),
        ("batched/05_refill_hot_list.wgsl", size),
        ("batched/06_select_batch.wgsl", one),
        ("batched/07_mark.wgsl", size),
        ("batched/08_count_changes.wgsl", size),
        ("batched/09_make_pairs.wgsl", size),
        ("batched/10_link.wgsl", size),
    ]
    kernels = device.prepare(requests)
    return {kernel.label.removeprefix("batched_"): kernel for kernel in kernels}


def unfit(device: Device, words: SymbolWords, merges: int) -> str | None:
    """Say why a device can't train on these words; None if it can."""
    symbols = len(words.lengths) + merges
    if symbols > MAX_SYMBOLS:
        return f"{symbols} tokens asked for, {MAX_SYMBOLS} are the most"
    positions = len(words.symbols) + len(words.counts) + 1
    most = device.max_binding_bytes // LINK_BYTES
    if positions > most:
        return f"the distinct pre-tokens take {positions} positions, {most} are the most"
    if words.total > NONE and _highest_count(words) > NONE:
        return f"a pair occurs more than {NONE} times"
    return None


def gpu_bytes(words_bytes: int) -> int:
    """Estimate the device memory, in bytes, that distinct words of this many bytes take."""
    return BYTES_PER_POSITION * words_bytes + (64 << 20)


def _suitable(words: SymbolWords) -> Capacities:
    positions = len(words.symbols) + len(words.counts) + 1
    candidates = 1 << max(16, (positions // 8).bit_length())
    return Capacities(
        pairs=max(1 << 18, positions // 4),
        listed=2 * positions + (1 << 16),
        entries=1 << max(16, (candidates // 4).bit_length()),
        candidates=candidates,
    )


def _first_pairs(words: SymbolWords) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Number the pairs that the words start out with.

    Returns the number of the pair that starts at each symbol, uint32 (n,), of which those at ends
    of words mean nothing, and the pairs, uint32 (distinct, 2).
    """
    symbols = words.symbols
    if len(words.lengths) == 256:
        numbers = symbols << np.uint32(8)
        numbers[:-1] |= symbols[1:]
        every = np.arange(1 << 16, dtype=np.uint32)
        return numbers, np.column_stack([every >> 8, every & 255]).astype(np.uint32)
    keys = symbols.astype(np.uint64) << np.uint64(32)
    keys[:-1] |= symbols[1:]
    distinct, places = np.unique(keys, return_inverse=True)
    pairs = np.column_stack([distinct >> np.uint64(32), distinct & np.uint64(NONE)])
    return places.astype(np.uint32), pairs.astype(np.uint32)


def _highest_count(words: SymbolWords) -> int:
    """Return how often the most frequent pair occurs."""
    numbers, pairs = _first_pairs(words)
    numbers[words.offsets[1:] - 1] = len(pairs)  # no pair begins at the end of a word
    weights = np.repeat(words.counts, np.diff(words.offsets))
    # Sums of floats are exact up to 2^53, far beyond what is asked.
    return int(np.bincount(numbers, weights=weights, minlength=len(pairs) + 1)[:-1].max())


class _BatchedLoop:
    """Buffers and bound kernels of a training run."""

    def __init__(
        self,
        device: Device,
        words: SymbolWords,
        merges: int,
        workgroup_size: int,
        capacities: Capacities,
    ) -> None:
        self._device = device
        self._capacities = capacities
        self._groups = SOFTWARE_GROUPS if device.is_software else GROUPS
        self._wg = workgroup_size
        self._kernels = compile_kernels(device, workgroup_size)
        self._positions_used = len(words.symbols) + len(words.counts) + 1
        get = device.pool.get
        self._units = get("units", UNIT_BYTES * self._positions_used)
        self._links = get("links", LINK_BYTES * self._positions_used)
        self._slots = get("slots", 4 * self._positions_used)
        self._lengths = get("symbol lengths", 4 * (len(words.lengths) + merges + MAX_BATCH))
        self._log = get("merge log", 16 * merges)
        self._bins = get("bins", 4 * BINS)
        self._hot_list = get("hot list", 16 * HOT_CAPACITY)
        self._state = get("batch state", STATE.itemsize)

    def load(
        self,
        words: SymbolWords,
        merges: int,
        min_frequency: int,
        max_token_length: int | None,
    ) -> None:
        """Upload the words and lay them out as linked positions with their pairs."""
        numbers, first_pairs = _first_pairs(words)
        self._reserve(len(first_pairs))
        self._write_state(words, merges, min_frequency, max_token_length)
        self._device.write(self._lengths, words.lengths)
        uploads: dict[str, NDArray[Any]] = {
            "word_symbols": words.symbols,
            "pair_entries": numbers,
            "words": np.column_stack([words.offsets[1:], words.counts]).astype(np.uint32),
            "first_pairs": first_pairs,
        }
        buffers = {name: self._upload(name, array) for name, array in uploads.items()}
        sizes = (len(words.counts), self._positions_used, len(first_pairs), 0)
        params = self._device.create_uniform("lay out params", 16)
        self._device.write(params, np.array(sizes, np.uint32))
        places = self._device.create_buffer("places", 4 * self._positions_used)
        first_pair_list = buffers.pop("first_pairs")
        kernels, bound = self._kernels, self._buffers()
        commands = self._device.record()
        commands.clear(self._bins)
        by_position = -(-self._positions_used // self._wg)
        commands.dispatch(
            kernels["lay_out"].bind(
                **buffers,
                params=params,
                places=places,
                **{name: bound[name] for name in ("units", "links", "slots", "entries")},
            ),
            by_position,
        )
        commands.dispatch(
            kernels["first_pairs"].bind(
                first_pairs=first_pair_list,
                params=params,
                **{
                    name: bound[name]
                    for name in ("entries", "pairs", "pair_counts", "lengths", "state")
                },
            ),
            -(-len(first_pairs) // self._wg),
        )
        commands.dispatch(
            kernels["first_links"].bind(
                places=places,
                params=params,
                **{name: bound[name] for name in ("entries", "pairs", "slots", "position_list")},
            ),
            by_position,
        )
        commands.clear(self._entries)
        self._device.submit(commands)

    def _upload(self, name: str, array: NDArray[Any]) -> Buffer:
        buffer = self._device.create_buffer(name, array.nbytes)
        self._device.write(buffer, array)
        return buffer

    def _reserve(self, first_pairs: int) -> None:
        """Make the buffers that grow, large enough for the first pairs, and bind the kernels."""
        capacities = self._capacities
        entries = max(capacities.entries, 1 << (first_pairs - 1).bit_length())
        self._capacities = Capacities(
            pairs=max(capacities.pairs, first_pairs + 1),
            listed=max(capacities.listed, self._positions_used),
            entries=entries,
            candidates=capacities.candidates,
        )
        get, sizes = self._device.create_buffer, self._capacities
        self._pairs = get("pairs", PAIR_BYTES * sizes.pairs)
        self._pair_counts = get("pair counts", 4 * sizes.pairs)
        self._list = get("position list", 4 * sizes.listed)
        self._entries = get("entries", ENTRY_BYTES * sizes.entries)
        self._changes = get("changes", CHANGE_BYTES * sizes.candidates)
        self._bind()

    def _write_state(
        self, words: SymbolWords, merges: int, min_frequency: int, max_token_length: int | None
    ) -> None:
        state = np.zeros(1, STATE)
        state["status"], state["digit_width"] = REFILL, NONE
        state["merge_limit"] = merges
        # No pair occurs as often as 32 bits count, so a larger minimum means the same.
        state["min_frequency"] = min(max(min_frequency, 1), NONE)
        state["first_symbol"] = len(words.lengths)
        longest = NONE if max_token_length is None else min(max_token_length, NONE)
        state["max_length"] = longest
        state["last_count"] = NONE
        state["pair_count"] = 1  # slot 0 means none
        self._write_capacities(state)

    def _write_capacities(self, state: NDArray[Any]) -> None:
        sizes = self._capacities
        state["pair_capacity"] = sizes.pairs
        state["list_capacity"] = sizes.listed
        state["entry_capacity"] = sizes.entries
        state["candidate_capacity"] = sizes.candidates
        self._device.write(self._state, state)

    def _buffers(self) -> dict[str, Buffer]:
        """Return the buffers by the names that the kernels give them."""
        return {
            "units": self._units,
            "links": self._links,
            "slots": self._slots,
            "position_list": self._list,
            "pairs": self._pairs,
            "pair_counts": self._pair_counts,
            "entries": self._entries,
            "changes": self._changes,
            "lengths": self._lengths,
            "merge_log": self._log,
            "hot_list": self._hot_list,
            "bins": self._bins,
            "state": self._state,
        }

    def _bind(self) -> None:
        buffers = self._buffers()

        def bound(name: str) -> BoundKernel:
            kernel = self._kernels[name]
            return kernel.bind(
                **{binding.name: buffers[binding.name] for binding in kernel.bindings}
            )

        self._count_ranks, self._lower_threshold = bound("count_ranks"), bound("lower_threshold")
        self._refill_hot_list = bound("refill_hot_list")
        self._select = bound("select_batch")
        stages = ("mark", "count_changes", "make_pairs", "link")
        self._stages = [bound(name) for name in stages]

    def _record_round(self, commands: Commands) -> None:
        """Record a refill of the hot list, idle unless it is asked for, and batches."""
        commands.dispatch(self._lower_threshold, 1)
        for _ in range(MAX_DIGITS):
            commands.dispatch(self._count_ranks, self._groups)
            commands.dispatch(self._lower_threshold, 1)
        commands.dispatch(self._refill_hot_list, self._groups)
        for _ in range(BATCHES_PER_REFILL):
            commands.dispatch(self._select, 1)
            for stage in self._stages:
                commands.dispatch(stage, self._groups)

    def run(
        self, words: SymbolWords, merges: int, progress: Progress, on_merges: OnMerges | None
    ) -> SymbolMerges:
        """Go through batches until all merges are made or no pair is frequent enough."""
        pending: deque[Download] = deque()
        spare = [Download(self._device) for _ in range(2)]
        most = MAX_TIMED // DISPATCHES if self._device.timing else MAX_ROUNDS
        reported, rounds, status, last = 0, 1, RUNNING, time.perf_counter()
        while True:
            while spare and status in (RUNNING, REFILL):
                pending.append(self._submit(rounds, spare.pop()))
            if not pending:
                break
            download = pending.popleft()
            state = np.empty(1, STATE)
            download.finish(state.view(np.uint8))
            spare.append(download)
            done, status = int(state["merged"][0]), int(state["status"][0])
            progress("merging", done, merges)
            now = time.perf_counter()
            rounds = min(_next_rounds(rounds, now - last), most)
            last = now
            if status == FULL and not pending:
                self._grow(state)
                status = RUNNING
            if on_merges is not None and done > reported:
                log = self._read_log(done)[reported:]
                on_merges(log[:, :2], log[:, 2].astype(np.int64))
                reported = done
        return self._result(words, self._read_log(done), int(state["batches"][0]))

    def _submit(self, rounds: int, download: Download) -> Download:
        commands = self._device.record()
        for _ in range(rounds):
            self._record_round(commands)
        download.record(commands, self._state, STATE.itemsize)
        self._device.submit(commands)
        download.begin()
        return download

    def _grow(self, state: NDArray[Any]) -> None:
        """Make room for the pair that is next, and as much again."""
        needed, old = int(state["needed"][0]), self._capacities
        changes = 2 * needed
        if state["list_length"][0] + changes > old.listed:
            state["list_length"] = self._compact_list(state)
        self._capacities = Capacities(
            pairs=max(old.pairs, 2 * (int(state["pair_count"][0]) + changes)),
            listed=max(old.listed, 2 * (int(state["list_length"][0]) + changes)),
            entries=max(old.entries, 1 << (4 * changes - 1).bit_length()),
            candidates=max(old.candidates, 2 * needed),
        )
        self._pairs = self._grown(self._pairs, PAIR_BYTES * self._capacities.pairs)
        self._pair_counts = self._grown(self._pair_counts, 4 * self._capacities.pairs)
        self._list = self._grown(self._list, 4 * self._capacities.listed)
        create = self._device.create_buffer
        self._entries = create("entries", ENTRY_BYTES * self._capacities.entries)
        self._changes = create("changes", CHANGE_BYTES * self._capacities.candidates)
        self._bind()
        state["status"], state["used"], state["used_before"] = RUNNING, 0, 0
        self._write_capacities(state)

    def _compact_list(self, state: NDArray[Any]) -> int:
        """Drop the positions of pairs that are merged or too rare; return how many are left."""
        pair_count, listed = int(state["pair_count"][0]), int(state["list_length"][0])
        counts = self._device.read(self._pair_counts, pair_count, np.uint32)
        pairs = self._device.read(self._pairs, 4 * pair_count, np.uint32).reshape(-1, 4)
        positions = self._device.read(self._list, listed, np.uint32)
        kept = np.flatnonzero(counts >= state["min_frequency"])
        sizes = pairs[kept, 3].astype(np.int64)
        positions = concatenate_ranges(positions, pairs[kept, 2].astype(np.int64), sizes)
        pairs[kept, 2] = np.cumsum(sizes) - sizes
        self._device.write(self._pairs, pairs)
        self._device.write(self._list, positions)
        return len(positions)

    def _grown(self, buffer: Buffer, nbytes: int) -> Buffer:
        """Return a buffer of at least this size with the same contents."""
        if nbytes <= buffer.nbytes:
            return buffer
        larger = self._device.create_buffer(buffer.label, nbytes)
        commands = self._device.record()
        commands.copy(buffer.handle, larger.handle, buffer.nbytes)
        self._device.submit(commands)
        return larger

    def _read_log(self, done: int) -> NDArray[np.uint32]:
        return self._device.read(self._log, 4 * done, np.uint32).reshape(done, 4)

    def _result(self, words: SymbolWords, log: NDArray[np.uint32], batches: int) -> SymbolMerges:
        equal = log[:, 0] == log[:, 1]
        taken = np.where(equal, log[:, 3], log[:, 2]).astype(np.int64)
        counts = log[:, 2].astype(np.int64)
        return SymbolMerges(log[:, :2].copy(), counts, words.total - int(taken.sum()), batches)


def _next_rounds(rounds: int, seconds: float) -> int:
    """Aim for SUBMIT_SECONDS a submission, changing by a factor of two at most."""
    factor = min(2.0, max(0.5, SUBMIT_SECONDS / max(seconds, 1e-4)))
    return max(1, int(rounds * factor))
