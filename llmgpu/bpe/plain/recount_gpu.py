"""The recount trainer: one whole pass over the text for every merge, all of it on the device.

The trainer follows the textbook: count all adjacent pairs, merge the best pair everywhere, compact
the text, repeat. The kernels are in wgsl/recount, numbered in the order of an iteration. Many
iterations are recorded into one submission. The host reads nothing between iterations, because the
state of the loop, the merge log and the workgroup counts of the shrinking text stay on the device.

A word that is merged to one symbol has no pair left, so its symbol is not copied to the next
iteration's text. At 8192 tokens and 10 MB of program text this leaves two fifths of the symbols.

A full pair table halts the submission before a merge. The host makes the table larger and resumes
at this merge.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pretokens.pretoken_gpu import GpuPretokenizer
from llmgpu.bpe.pretokens.slices import Slice
from llmgpu.bpe.training.options import TrainingOptions
from llmgpu.bpe.training.symbols import Merges
from llmgpu.bpe.vocabulary.building import byte_ranks
from llmgpu.errors import DeviceError, LlmgpuError
from llmgpu.gpu.commands import Commands
from llmgpu.gpu.device import Device, hash_key_buffer, paced_states
from llmgpu.kernel_source import constant, struct_dtype
from llmgpu.progress import Progress, no_progress
from llmgpu.spelling import spelled

MAX_TOKENS = 65_536  # pairs have two ranks of 16 bits
MAX_SHORT_TOKENS = 32_768  # a symbol of 2 bytes has a rank of 15 bits
MAX_TEXT_BYTES = 1 << 30  # kernels of wgsl/pretoken compute positions as signed numbers
_STATE_FILE = "recount/iter_state.wgsl"
KERNELS = (
    *("00_word_boundary", "01_clear_table", "02_pair_count", "03_find_max", "05_setup_merge"),
    *("06_run_reduce", "08_merge_reduce", "09_scan_blocks", "12_finalize_compact"),
)
STATE = struct_dtype(_STATE_FILE, "IterState")
RUNNING, TABLE_FULL = constant(_STATE_FILE, "RUNNING"), constant(_STATE_FILE, "TABLE_FULL")
# Byte offsets in the buffer dispatch_args: arguments of an indirect dispatch are three u32.
ARGS_COUNT, ARGS_BLOCKS, ARGS_RUNS, ARGS_BYTES = (
    12 * constant(_STATE_FILE, f"ARGS_{name}") for name in ("COUNT", "BLOCKS", "RUNS", "COUNT_OF")
)
RUN_TILE = constant(_STATE_FILE, "RUN_TILE")  # blocks that share one entry of run_tiles
COUNT_TILE = constant(_STATE_FILE, "COUNT_TILE")  # symbols counted by one workgroup
SOFTWARE_COUNT_TILE = 4096  # with 1024, Mesa's driver takes 2.5 times as long
SYMBOLS_PER_THREAD = 8  # symbols that a thread marks and moves
FIRST_TABLE_SLOTS = 1 << 16
TABLE_GROWTH = 4
# Goal for the time of a submission. Progress and Ctrl-C are handled between submissions.
SUBMIT_SECONDS = 0.2
FIRST_ITERATIONS, MAX_ITERATIONS = 4, 512  # limits of the iterations in one submission


def train(
    device: Device,
    text: NDArray[np.uint8],
    document_starts: NDArray[np.int64],
    options: TrainingOptions,
    *,
    progress: Progress = no_progress,
    table_slots: int = FIRST_TABLE_SLOTS,
    count_tile: int | None = None,
    symbol_bytes: int | None = None,
) -> Merges:
    """Train on `text`, uint8 (n,), whose documents start at `document_starts`.

    options: the vocabulary's size, pattern, tie rule and minimum frequency.
    table_slots: size of the first pair table, a power of two.
    count_tile: symbols counted by one workgroup, None for the fastest number on this kind of
        adapter; the result does not depend on the number.
    symbol_bytes: 2, 4, or None for the fewest bytes that hold all symbols; the result does not
        depend on the number.
    """
    tokens = 256 + options.merges
    if tokens > MAX_TOKENS:
        raise LlmgpuError(
            f"the recount engine numbers tokens with 16 bits: {tokens} tokens asked for, but the "
            f"limit is {MAX_TOKENS}; ask for fewer or use {spelled('--device cpu')}"
        )
    symbol_bytes = symbol_bytes or symbol_bytes_of(options)
    most = most_text_bytes(device, symbol_bytes)
    if len(text) > most:
        raise DeviceError(
            f"the corpus has more than {most} bytes, the limit on {device.name}; use "
            f"{spelled('--limit')} {most} or {spelled('--device cpu')}"
        )
    if count_tile is None:
        count_tile = SOFTWARE_COUNT_TILE if device.is_software else COUNT_TILE
    loop = _RecountLoop(device, len(text), options, table_slots, count_tile, symbol_bytes)
    loop.load(text, document_starts)
    return loop.run(progress)


def symbol_bytes_of(options: TrainingOptions) -> int:
    """Return the fewest bytes, 2 or 4, that hold all symbols of a training."""
    return 2 if 256 + options.merges <= MAX_SHORT_TOKENS else 4


def most_text_bytes(device: Device, symbol_bytes: int) -> int:
    """Return the longest text in bytes: one binding must hold a symbol for each byte of text."""
    return min(device.max_binding_bytes // symbol_bytes, MAX_TEXT_BYTES)


class _RecountLoop:
    """Buffers and bound kernels of one training; freeing the loop frees all buffers."""

    def __init__(
        self,
        device: Device,
        text_bytes: int,
        options: TrainingOptions,
        table_slots: int,
        count_tile: int,
        symbol_bytes: int,
    ) -> None:
        self._device = device
        self._size = text_bytes
        self._options = options
        self._byte_ranks = byte_ranks(options.tie)
        self._wg = device.workgroup_size
        self._block = SYMBOLS_PER_THREAD * self._wg
        self._symbols_per_word = 4 // symbol_bytes
        constants = {
            "BLOCK": self._block,
            "COUNT_TILE": count_tile,
            "LOCAL_TABLE_SIZE": options.recount_slots,
            "symbols_per_word": self._symbols_per_word,
        }
        self._kernels = device.prepare({f"recount/{name}": constants for name in KERNELS})
        self._table_slots = table_slots
        # Number of the next iteration to record; after a halt, the number of merges made.
        self._recorded = 0
        blocks = -(-text_bytes // self._block)
        create = device.create_buffer
        # An iteration reads one of these two buffers and writes the other.
        self._symbols = [create(f"symbols {k}", symbol_bytes * text_bytes) for k in range(2)]
        # The key of a buffer is the buffer's name in the kernels.
        self._buffers = {
            "valid_mask": create("valid mask", 4 * self._wg * blocks),
            "block_sums": create("block sums", 4 * blocks),
            "run_starts": create("run starts", 4 * blocks),
            "run_tiles": create("run tiles", 4 * -(-blocks // RUN_TILE)),
            "state": create("state", STATE.itemsize),
            "dispatch_args": create("dispatch args", ARGS_BYTES),
            "table_status": create("table status", 8),
            "merge_log": create("merge log", 16 * options.merges),
            "run_merges": create("run merges", 4),
            "hash_key": hash_key_buffer(device),
        }

    def load(self, text: NDArray[np.uint8], document_starts: NDArray[np.int64]) -> None:
        """Upload the text, and make the symbols on the device."""
        device = self._device
        state = np.zeros(1, STATE)
        state["symbol_count"] = state["next_symbol_count"] = self._size
        state["table_size"] = self._table_slots
        state["merge_limit"] = self._options.merges
        # A pair count has 32 bits, so a larger minimum has the effect of the largest 32-bit number.
        state["min_frequency"] = min(max(self._options.min_frequency, 1), 0xFFFFFFFF)
        device.write(self._buffers["state"], state)
        marked = self._mark_starts(text, document_starts)
        boundary = self._kernels.pop("word_boundary").bind(
            text=marked.text,
            start_bits=marked.start_bits,
            byte_ranks=device.upload("byte ranks", self._byte_ranks),
            symbols=self._symbols[0],
            state=self._buffers["state"],
        )
        device.dispatch(boundary, -(-self._size // (self._symbols_per_word * self._wg)))
        self._make_table(self._table_slots)

    def _mark_starts(
        self, text: NDArray[np.uint8], document_starts: NDArray[np.int64]
    ) -> GpuPretokenizer:
        """Return a pre-tokenizer with the text and the bits of its pre-tokens on the device."""
        whole = Slice(text, document_starts, closed=True, end=True, buffer=text, main_end=len(text))
        pretokenizer = GpuPretokenizer(self._device, self._options.cut, len(text))
        self._device.write(pretokenizer.text, text)
        commands = self._device.record()
        pretokenizer.record(commands, whole)
        commands.submit()
        if self._device.read(pretokenizer.undecided, 1, np.uint32)[0]:
            pretokenizer.mark_on_host(whole)
        return pretokenizer

    def _make_table(self, slots: int) -> None:
        """Create an empty pair table, and bind all kernels to the table.

        The state on the device has the same number of slots.
        """
        self._table_slots = slots
        create = self._device.create_buffer
        self._buffers["pair_counts"] = create("pair counts", 4 * slots)
        self._buffers["pair_ids"] = create("pair ids", 4 * slots)
        self._buffers["candidates"] = create("candidates", 8 * -(-slots // (4 * self._wg)))
        self._bound = [  # kernels of even and of odd iterations, which swap the symbol buffers
            {
                name: kernel.bind_from(
                    self._buffers | {"symbols": source, "output_symbols": target}
                )
                for name, kernel in self._kernels.items()
            }
            for source, target in (self._symbols, self._symbols[::-1])
        ]
        self._device.dispatch(self._bound[0]["clear_table"], -(-slots // self._wg))

    def _record_iteration(self, commands: Commands) -> None:
        # The iteration after the last merge only ends the loop; more would wait in the queue.
        if self._recorded > self._options.merges:
            return
        slots, args = self._table_slots, self._buffers["dispatch_args"]
        bound = self._bound[self._recorded & 1]
        self._recorded += 1
        # Count all pairs, and choose the most frequent pair.
        commands.dispatch_indirect(bound["pair_count"], args, ARGS_COUNT)
        commands.dispatch(bound["find_max"], -(-slots // (4 * self._wg)))
        commands.dispatch(bound["setup_merge"], 1)
        # Find the starts of runs of equal symbols. In a run, the distance from its start decides
        # which symbols merge.
        commands.dispatch_indirect(bound["run_reduce"], args, ARGS_RUNS)
        # Merge, count the symbols left in each block, and compact the text.
        commands.dispatch_indirect(bound["merge_reduce"], args, ARGS_BLOCKS)
        commands.dispatch(bound["scan_blocks"], 1)
        commands.dispatch_indirect(bound["finalize_compact"], args, ARGS_BLOCKS)

    def run(self, progress: Progress) -> Merges:
        """Iterate until all merges are made or no pair is frequent enough."""
        for state, is_idle in paced_states(
            self._device,
            self._buffers["state"],
            STATE,
            self._record_iteration,
            running=(RUNNING,),
            seconds=SUBMIT_SECONDS,
            first_rounds=FIRST_ITERATIONS,
            most_rounds=MAX_ITERATIONS,
        ):
            done = int(state["merge_count"][0])
            progress("merging", done, self._options.merges)
            # Later submissions that are already queued change nothing after a halt: wait for their
            # end.
            if state["status"][0] == TABLE_FULL and is_idle:
                slots = self._table_slots * TABLE_GROWTH
                state["table_size"], state["status"] = slots, RUNNING
                self._device.write(self._buffers["state"], state)
                self._make_table(slots)
                # Iterations after the halt did not swap the symbol buffers, so they do not count.
                self._recorded = done
        log = self._device.read(self._buffers["merge_log"], 4 * done, np.uint32).reshape(done, 4)
        ids = np.arange(256 + done, dtype=np.uint32)
        # ids[symbol]: the id of a symbol. The symbol of a byte is the byte's rank.
        ids[self._byte_ranks] = np.arange(256, dtype=np.uint32)
        pairs, counts = log[:, :2], log[:, 2].astype(np.int64)
        # A merge of two different symbols removes as many symbols as its pair has occurrences.
        merged = int(counts[pairs[:, 0] != pairs[:, 1]].sum())
        merged += int(self._device.read(self._buffers["run_merges"], 1, np.uint32)[0])
        return Merges(ids[pairs], counts, self._size - merged)


def gpu_bytes(text_bytes: int, options: TrainingOptions) -> int:
    """Estimate the device memory, in bytes, for training on a text of `text_bytes`."""
    # A byte of text needs two symbols and a byte of marks. The text, and up to 3 bits of the
    # pre-tokenizer for each byte, are freed once the symbols exist.
    half_bytes = 4 * symbol_bytes_of(options) + 5
    return half_bytes * text_bytes // 2 + (64 << 20)
