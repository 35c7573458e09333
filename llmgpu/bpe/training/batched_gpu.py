"""The batched trainer on a GPU: the merges of the sequential algorithm, many in one pass.

The head of `batched_numpy` describes the algorithm, and says why the merges are exact. The kernels
are in wgsl/batched. The host reads nothing back between batches: the state of the loop, the list of
high-ranking pairs (the hot list) and the merge log stay on the device.

If a buffer could overflow in the next batch, the submission halts before a merge. The host enlarges
the buffer and resumes at the same batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import concatenate_ranges
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.symbols import Merges, MergeTask, SymbolWords
from llmgpu.errors import CapacityError
from llmgpu.gpu.commands import Commands
from llmgpu.gpu.device import Device, hash_key_buffer, paced_states
from llmgpu.gpu.kernel import Kernel
from llmgpu.kernel_source import constant, struct_dtype
from llmgpu.machine import Costs

_STATE_FILE, _RANK_FILE = "batched/state.wgsl", "batched/rank.wgsl"
STATE = struct_dtype(_STATE_FILE, "BatchState")
PARAMS = struct_dtype(_STATE_FILE, "LayOutParams")
RUNNING, REFILL, FULL, NONE, MAX_BATCH, HOT_CAPACITY = (
    constant(_STATE_FILE, name)
    for name in ("RUNNING", "REFILL", "FULL", "NONE", "MAX_BATCH", "HOT_CAPACITY")
)
MAX_SYMBOLS = 1 << constant(_RANK_FILE, "SYMBOL_BITS")
BINS, MAX_DIGITS = constant(_RANK_FILE, "BINS"), constant(_RANK_FILE, "MAX_DIGITS")
PAIR_BYTES, ENTRY_BYTES, UNIT_BYTES, LINK_BYTES = (
    struct_dtype(_STATE_FILE, name).itemsize for name in ("Pair", "Entry", "Unit", "Link")
)
CHANGE_BYTES = LOG_BYTES = HOT_BYTES = 16  # bytes of a vec4<u32>
# Number of batches recorded after each refill of the hot list. On average the list lasts for half
# of these batches, and the other batches do nothing.
BATCHES_PER_REFILL = 32
# Goal for the time of a submission. Progress and Ctrl-C are handled between submissions.
SUBMIT_SECONDS = 0.1
# Limit of the rounds in one submission. A round is a refill of the hot list and its batches.
MAX_ROUNDS = 16
GROUPS, SOFTWARE_GROUPS = 512, 64
MAX_SELECT_WORKGROUP = 1024  # must divide BINS
SETUP_KERNELS = ("lay_out", "first_pairs", "first_links")
ROUND_KERNELS = (
    *("count_ranks", "lower_threshold", "refill_hot_list", "select_batch"),
    *("mark", "count_changes", "make_pairs", "link"),
)
SELECTING = ("lower_threshold", "select_batch")  # kernels that run as a single workgroup
COSTS = Costs(fixed=64 << 20, per_byte=56, per_word=56)  # memory of all buffers and uploads


class Capacities(NamedTuple):
    """Sizes of the growing buffers, as numbers of elements, by fields of the kernels' state."""

    pair_capacity: int = 1 << 18
    list_capacity: int = 1 << 20
    entry_capacity: int = 1 << 16
    candidate_capacity: int = 1 << 16


def train(
    device: Device,
    words: SymbolWords,
    options: TrainingOptions,
    task: MergeTask,
    *,
    first_capacities: Capacities | None = None,
) -> Merges:
    """Learn the merges of a task from words; merge k makes symbol len(words.lengths) + k.

    options: `min_frequency` and `max_token_length` decide which pairs may be merged.
    first_capacities: initial sizes of the growing buffers; None: chosen by the number of symbols.

    Raises CapacityError if the training does not fit on the device.
    """
    if reason := _unfit(device, words, task.merges):
        raise CapacityError(reason)
    if len(words.counts) == 0 or task.merges == 0:
        none = np.empty(0, np.int64)
        return Merges(np.empty((0, 2), np.uint32), none, words.total, 0)
    loop = _BatchedLoop(device, words, task, first_capacities or _suitable(words))
    loop.load(options)
    return loop.run()


def compile_kernels(device: Device) -> dict[str, Kernel]:
    """Compile the trainer's kernels, in threads and once per device; return them by name."""
    largest = device.limits["max-compute-invocations-per-workgroup"]
    one = {"WORKGROUP_SIZE": min(largest, MAX_SELECT_WORKGROUP)}
    names = enumerate((*SETUP_KERNELS, *ROUND_KERNELS))
    return device.prepare(
        {f"batched/{k:02}_{name}": one if name in SELECTING else {} for k, name in names}
    )


def _unfit(device: Device, words: SymbolWords, merges: int) -> str | None:
    """Return the reason why a device can't train on these words; None if the device can."""
    symbols = len(words.lengths) + merges
    if symbols > MAX_SYMBOLS:
        return f"{symbols} tokens asked for, but the limit of {device.name} is {MAX_SYMBOLS}"
    positions = words.positions
    most = device.max_binding_bytes // LINK_BYTES
    if positions > most:
        words_take = f"the distinct pre-tokens take {positions} positions"
        return f"{words_take}, but the limit of {device.name} is {most}"
    if words.total > NONE and _highest_count(words) > NONE:
        return f"a pair occurs more than {NONE} times, the limit of {device.name}"
    return None


def _suitable(words: SymbolWords) -> Capacities:
    positions = words.positions
    candidates = 1 << max(16, (positions // 8).bit_length())
    return Capacities(
        pair_capacity=max(1 << 18, positions // 4),
        list_capacity=2 * positions + (1 << 16),
        entry_capacity=1 << max(16, (candidates // 4).bit_length()),
        candidate_capacity=candidates,
    )


def _first_pairs(words: SymbolWords) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Number the pairs in the words before any merge.

    Returns numbers, uint32 (n,), and pairs, uint32 (distinct, 2). A symbol's number is the index of
    the pair that starts there; undefined for the last symbol of a word.
    """
    symbols = words.symbols.astype(np.uint32)
    if len(words.lengths) == 256:
        # Number all pairs of bytes, which takes less time than finding the pairs that occur.
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
    """Return the count of the most frequent pair."""
    numbers, pairs = _first_pairs(words)
    numbers[words.offsets[1:] - 1] = len(pairs)  # no pair begins at the end of a word
    weights = np.repeat(words.counts, np.diff(words.offsets))
    # Sums of floats are exact up to 2^53, far above any number here.
    return int(np.bincount(numbers, weights=weights, minlength=len(pairs) + 1)[:-1].max())


class _BatchedLoop:
    """Buffers and bound kernels of one training; freeing the loop frees all buffers."""

    def __init__(
        self,
        device: Device,
        words: SymbolWords,
        task: MergeTask,
        capacities: Capacities,
    ) -> None:
        self._device = device
        self._words, self._task = words, task
        self._capacities = capacities
        self._groups = SOFTWARE_GROUPS if device.is_software else GROUPS
        self._kernels = compile_kernels(device)
        self._positions = words.positions
        sizes = {
            "units": UNIT_BYTES * self._positions,
            "links": LINK_BYTES * self._positions,
            "slots": 4 * self._positions,
            "lengths": 4 * (len(words.lengths) + task.merges + MAX_BATCH),
            "merge_log": LOG_BYTES * task.merges,
            "bins": 4 * BINS,
            "hot_list": HOT_BYTES * HOT_CAPACITY,
            "state": STATE.itemsize,
        }
        # The key of a buffer is the buffer's name in the kernels.
        self._buffers = {
            name: device.create_buffer(name.replace("_", " "), size) for name, size in sizes.items()
        }
        self._buffers["hash_key"] = hash_key_buffer(device)

    def load(self, options: TrainingOptions) -> None:
        """Upload the words, and store the symbols as linked positions with their pairs."""
        device, kernels, words = self._device, self._kernels, self._words
        numbers, first_pairs = _first_pairs(words)
        self._make_buffers(
            pair_capacity=len(first_pairs) + 1,
            list_capacity=self._positions,
            entry_capacity=1 << (len(first_pairs) - 1).bit_length(),
        )
        self._write_state(options)
        device.write(self._buffers["lengths"], words.lengths)
        params = np.zeros(1, PARAMS)
        params["words"], params["positions"] = len(words.counts), self._positions
        params["distinct_pairs"] = len(first_pairs)
        # uint32 (words, 2): the end of each word in the symbols, and the word's count.
        ends = np.column_stack([words.offsets[1:], words.counts]).astype(np.uint32)
        buffers = self._buffers | {
            "word_symbols": device.upload("word symbols", words.symbols.astype(np.uint32)),
            "pair_entries": device.upload("pair entries", numbers),
            "words": device.upload("words", ends),
            "first_pairs": device.upload("first pairs", first_pairs),
            "params": device.upload("lay out params", params),
            "places": device.create_buffer("places", 4 * self._positions),
        }
        by_position = -(-self._positions // device.workgroup_size)
        by_pair = -(-len(first_pairs) // device.workgroup_size)
        # Only these first kernels need the uploads, which are freed when `load` returns.
        commands = device.record()
        commands.clear(buffers["bins"])
        commands.dispatch(kernels["lay_out"].bind_from(buffers), by_position)
        commands.dispatch(kernels["first_pairs"].bind_from(buffers), by_pair)
        commands.dispatch(kernels["first_links"].bind_from(buffers), by_position)
        commands.clear(buffers["entries"])
        commands.submit()

    def _make_buffers(self, **least: int) -> None:
        """Create or enlarge the growing buffers, and bind the kernels.

        The buffers of one batch are empty afterwards; all other buffers keep their contents.

        least: lower limits of capacities by name. A capacity above its limit does not change.
        """
        old, create = self._capacities, self._device.create_buffer
        larger = {name: max(number, getattr(old, name)) for name, number in least.items()}
        self._capacities = sizes = old._replace(**larger)
        lasting = {
            "pairs": PAIR_BYTES * sizes.pair_capacity,
            "pair_counts": 4 * sizes.pair_capacity,
            "position_list": 4 * sizes.list_capacity,
        }
        for name, nbytes in lasting.items():
            kept = self._buffers.get(name)
            if kept is None or nbytes > kept.nbytes:
                self._buffers[name] = made = create(name.replace("_", " "), nbytes)
                if kept is not None:
                    commands = self._device.record()
                    commands.copy(kept.handle, made.handle, kept.nbytes)
                    commands.submit()
        self._buffers["entries"] = create("entries", ENTRY_BYTES * sizes.entry_capacity)
        self._buffers["changes"] = create("changes", CHANGE_BYTES * sizes.candidate_capacity)
        self._bound = [self._kernels[name].bind_from(self._buffers) for name in ROUND_KERNELS]

    def _write_state(self, options: TrainingOptions) -> None:
        state = np.zeros(1, STATE)
        state["status"], state["digit_width"] = REFILL, NONE
        state["merge_limit"] = self._task.merges
        # A pair count has 32 bits, so a larger minimum has the effect of the largest 32-bit number.
        state["min_frequency"] = min(max(options.min_frequency, 1), NONE)
        state["first_symbol"] = len(self._words.lengths)
        state["max_length"] = min(options.max_token_length or NONE, NONE)
        state["last_count"] = NONE
        state["pair_count"] = 1  # no pair has slot 0
        self._write_capacities(state)

    def _write_capacities(self, state: NDArray[Any]) -> None:
        for name, number in self._capacities._asdict().items():
            state[name] = number
        self._device.write(self._buffers["state"], state)

    def _record_round(self, commands: Commands) -> None:
        """Record a refill of the hot list, then batches.

        The kernels skip the refill unless the state requests it.
        """
        count_ranks, lower_threshold, refill_hot_list, select, *stages = self._bound
        # Find the threshold of the hot list digit by digit, from the highest digit on.
        commands.dispatch(lower_threshold, 1)
        for _ in range(MAX_DIGITS):
            commands.dispatch(count_ranks, self._groups)
            commands.dispatch(lower_threshold, 1)
        commands.dispatch(refill_hot_list, self._groups)
        # If the hot list is too short for a batch, the batch and all batches after it do nothing.
        for _ in range(BATCHES_PER_REFILL):
            commands.dispatch(select, 1)
            for stage in stages:
                commands.dispatch(stage, self._groups)

    def run(self) -> Merges:
        """Run batches until all merges are made or no pair is frequent enough."""
        task, reported = self._task, 0
        for state, is_idle in paced_states(
            self._device,
            self._buffers["state"],
            STATE,
            self._record_round,
            running=(RUNNING, REFILL),
            seconds=SUBMIT_SECONDS,
            first_rounds=1,
            most_rounds=MAX_ROUNDS,
        ):
            done = int(state["merged"][0])
            task.progress("merging", done, task.merges)
            if task.on_merges is not None and done > reported:
                log = self._read_log(done)[reported:]
                task.on_merges(log[:, :2], log[:, 2].astype(np.int64))
                reported = done
            # Later submissions that are already queued change nothing after a halt: wait for their
            # end.
            if state["status"][0] == FULL and is_idle:
                self._grow(state)
        return self._result(self._read_log(done), int(state["batches"][0]))

    def _grow(self, state: NDArray[Any]) -> None:
        """Enlarge full buffers to twice the next pair's need, and set the state to RUNNING."""
        # Each occurrence of the pair changes two more pairs: on its left and on its right.
        changes = 2 * int(state["needed"][0])
        if state["list_length"][0] + changes > self._capacities.list_capacity:
            state["list_length"] = self._compact_list(state)
        self._make_buffers(
            pair_capacity=2 * (int(state["pair_count"][0]) + changes),
            list_capacity=2 * (int(state["list_length"][0]) + changes),
            entry_capacity=1 << (4 * changes - 1).bit_length(),
            candidate_capacity=changes,
        )
        state["status"], state["used"], state["used_before"] = RUNNING, 0, 0
        self._write_capacities(state)

    def _compact_list(self, state: NDArray[Any]) -> int:
        """Remove the positions of merged and too rare pairs; return how many positions remain."""
        pair_count, listed = int(state["pair_count"][0]), int(state["list_length"][0])
        device, buffers = self._device, self._buffers
        counts = device.read(buffers["pair_counts"], pair_count, np.uint32)
        pairs = device.read(buffers["pairs"], 4 * pair_count, np.uint32).reshape(-1, 4)
        positions = device.read(buffers["position_list"], listed, np.uint32)
        # Column 2 of a pair has the first of its positions in the list, column 3 their number.
        kept = np.flatnonzero(counts >= state["min_frequency"])
        sizes = pairs[kept, 3].astype(np.int64)
        positions = concatenate_ranges(positions, pairs[kept, 2].astype(np.int64), sizes)
        pairs[kept, 2] = np.cumsum(sizes) - sizes
        device.write(buffers["pairs"], pairs)
        device.write(buffers["position_list"], positions)
        return len(positions)

    def _read_log(self, done: int) -> NDArray[np.uint32]:
        return self._device.read(self._buffers["merge_log"], 4 * done, np.uint32).reshape(done, 4)

    def _result(self, log: NDArray[np.uint32], batches: int) -> Merges:
        # Every merge replaces two symbols by one. Column 2 has the occurrences of the pair.
        # Occurrences of a pair of equal symbols may overlap, so fewer are merged: column 3 has this
        # number.
        equal = log[:, 0] == log[:, 1]
        taken = np.where(equal, log[:, 3], log[:, 2]).astype(np.int64)
        counts = log[:, 2].astype(np.int64)
        return Merges(log[:, :2].copy(), counts, self._words.total - int(taken.sum()), batches)
