"""The recount trainer: one whole pass over the text for every merge, all of it on the device.

This is the plain reading of BPE training: count all adjacent pairs, take the best, merge it
everywhere, compact the text, again. The kernels are in wgsl/recount, numbered in the order in which
an iteration runs them. Many iterations are recorded into one submission; nothing is read back
between them, because the state of the loop, the merge log and the workgroup counts of the shrinking
text stay on the device. Two submissions are in flight, so the device never waits for the host.

A pair table that fills up stops the submission before anything is merged; the host makes it larger
and goes on from there.
"""

from __future__ import annotations

import time
from collections import deque

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.pretokens.pretoken_gpu import GpuPretokenizer
from llmgpu.bpe.pretokens.slices import Slice
from llmgpu.bpe.training.merges import TrainedMerges
from llmgpu.bpe.training.options import RECOUNT_SLOTS
from llmgpu.errors import DeviceError, LlmgpuError
from llmgpu.gpu import (
    MAX_TIMED,
    BoundKernel,
    Commands,
    Device,
    Download,
    Kernel,
    constant,
    struct_dtype,
)
from llmgpu.progress import Progress, no_progress

MAX_TOKENS = 65_536  # a symbol has 16 bits for its rank
_STATE_FILE = "recount/iter_state.wgsl"
STATE = struct_dtype(_STATE_FILE, "IterState")
RUNNING = constant(_STATE_FILE, "RUNNING")
TABLE_FULL = constant(_STATE_FILE, "TABLE_FULL")
COUNT_TILE = 4096  # symbols that one workgroup counts
SCAN_TILE = 1024  # block sums that one workgroup scans
FIRST_TABLE_SLOTS = 1 << 16
TABLE_GROWTH = 4
BYTES_PER_TEXT_BYTE = 13  # two symbol buffers, the mask (4 each) and the text itself
SUBMIT_SECONDS = 0.2  # aim for one submission: progress and Ctrl-C come between them
MAX_ITERATIONS = 512  # in one submission
DISPATCHES = 12  # of one iteration
ARGS_BYTES = 12 * constant(_STATE_FILE, "ARGS_COUNT_OF")


def _args(name: str) -> int:
    """Return the byte offset in dispatch_args of the workgroup counts of some dispatches."""
    return 12 * constant(_STATE_FILE, f"ARGS_{name}")


def train(
    device: Device,
    text: NDArray[np.uint8],
    document_starts: NDArray[np.int64],
    *,
    pattern: str,
    merges: int,
    byte_ranks: NDArray[np.uint32],
    min_frequency: int = 2,
    progress: Progress = no_progress,
    workgroup_size: int = 256,
    table_slots: int = FIRST_TABLE_SLOTS,
    workgroup_slots: int = RECOUNT_SLOTS,
) -> TrainedMerges:
    """Train on `text`, uint8 (n,), whose documents start at `document_starts`.

    byte_ranks: uint32 (256,), the order of bytes under the tie rule.
    table_slots: size of the first pair table, a power of two.
    workgroup_slots: size of the pair table in workgroup memory, a power of two.

    Raises:
        LlmgpuError: more tokens than 16 bits number.
        DeviceError: the text doesn't fit into the adapter's memory.
    """
    if merges + 256 > MAX_TOKENS:
        raise LlmgpuError(
            f"the recount engine numbers tokens with 16 bits: {merges + 256} tokens asked for, "
            f"{MAX_TOKENS} at most; ask for fewer or use --device cpu"
        )
    loop = _RecountLoop(device, len(text), pattern, workgroup_size, table_slots, workgroup_slots)
    # No pair occurs as often as 32 bits count, so a larger minimum means the same.
    frequency = min(max(min_frequency, 1), 0xFFFFFFFF)
    loop.load(text, document_starts, byte_ranks, merges, frequency)
    return loop.run(merges, byte_ranks, progress)


def most_text_bytes(device: Device) -> int:
    """Return how many bytes of text the device can train on: one binding holds all symbols."""
    return device.max_binding_bytes // 4


def check_fits(device: Device, text_bytes: int) -> None:
    """Raise a DeviceError if a text of this many bytes is more than the device can train on."""
    most = most_text_bytes(device)
    if text_bytes > most:
        raise DeviceError(
            f"the corpus has more than {most} bytes, the most that {device.name} can train on; "
            f"use --limit {most} or --device cpu"
        )


class _RecountLoop:
    """Buffers and bound kernels of a training run."""

    def __init__(
        self,
        device: Device,
        text_bytes: int,
        pattern: str,
        workgroup_size: int,
        table_slots: int,
        workgroup_slots: int,
    ) -> None:
        check_fits(device, text_bytes)
        self._device = device
        self._size = text_bytes
        self._wg = workgroup_size
        self._compile(workgroup_slots)
        self._pattern = pattern
        blocks = -(-text_bytes // workgroup_size)
        self._symbols = [device.pool.get(f"symbols {k}", 4 * text_bytes) for k in range(2)]
        self._mask = device.pool.get("valid mask", 4 * text_bytes)
        self._block_sums = device.pool.get("block sums", 4 * blocks)
        self._run_starts = device.pool.get("run starts", 4 * blocks)
        self._tile_sums = device.pool.get("tile sums", 4 * -(-blocks // SCAN_TILE))
        self._state = device.pool.get("state", STATE.itemsize)
        self._args = device.pool.get("dispatch args", ARGS_BYTES)
        self._status = device.pool.get("table status", 8)
        self._best = device.pool.get("best pair", 8)
        self._table_slots = table_slots

    def _compile(self, workgroup_slots: int) -> None:
        size = {"WORKGROUP_SIZE": self._wg}
        count, scan = {"COUNT_TILE": COUNT_TILE}, {"SCAN_TILE": SCAN_TILE}
        local = {"LOCAL_TABLE_SIZE": workgroup_slots}
        requests: list[tuple[str, dict[str, int]]] = [
            ("recount/00_word_boundary.wgsl", size),
            ("recount/01_clear_table.wgsl", size | count | scan),
            ("recount/02_pair_count.wgsl", size | count | local),
            ("recount/03_find_max.wgsl", size),
            ("recount/04_find_max_final.wgsl", size),
            ("recount/05_setup_merge.wgsl", {}),
            ("recount/06_run_reduce.wgsl", size),
            ("recount/07_run_scan.wgsl", size),
            ("recount/08_merge_reduce.wgsl", size),
            ("recount/09_scan_pass1.wgsl", size | scan),
            ("recount/10_scan_pass2.wgsl", size | scan),
            ("recount/11_scan_pass3.wgsl", size | scan),
            ("recount/12_finalize_compact.wgsl", size),
        ]
        kernels = self._device.prepare(requests)
        self._kernels: dict[str, Kernel] = {kernel.label: kernel for kernel in kernels}

    def load(
        self,
        text: NDArray[np.uint8],
        document_starts: NDArray[np.int64],
        byte_ranks: NDArray[np.uint32],
        merge_limit: int,
        min_frequency: int,
    ) -> None:
        """Upload the text and turn it into symbols."""
        pool = self._device.pool
        self._log = pool.get("merge log", 16 * merge_limit)
        whole = Slice(
            buffer=text,
            length=len(text),
            main_end=len(text),
            continues=False,
            document_starts=document_starts,
            boundaries=document_starts,
            closed=True,
            end=True,
            oversized=False,
        )
        text_buffer = pool.get("text", len(text))
        ranks = pool.get("byte ranks", byte_ranks.nbytes)
        self._device.write(text_buffer, text)
        self._device.write(ranks, byte_ranks)
        pretokenizer = GpuPretokenizer(self._device, self._pattern, len(text), pool)
        pretokenizer.bind(text_buffer)
        state = np.zeros(1, STATE)
        state["symbol_count"] = state["next_symbol_count"] = self._size
        state["table_size"] = self._table_slots
        state["merge_limit"] = merge_limit
        state["min_frequency"] = min_frequency
        self._device.write(self._state, state)
        commands = self._device.record()
        pretokenizer.record(commands, whole)
        self._device.submit(commands)
        if self._device.read(pretokenizer.undecided, 1, np.uint32)[0]:
            pretokenizer.mark_on_host(whole, text)
        commands = self._device.record()
        boundary = self._kernels["bpe_word_boundary"].bind(
            text=text_buffer,
            start_bits=pretokenizer.start_bits,
            byte_ranks=ranks,
            symbols=self._symbols[0],
            state=self._state,
        )
        commands.dispatch(boundary, -(-self._size // self._wg))
        self._device.submit(commands)
        self._bind_text()
        self._bind_table(self._table_slots)

    def _bind_text(self) -> None:
        """Bind what does not depend on the pair table, for even and odd iterations."""
        kernels, state = self._kernels, self._state
        self._setup = kernels["bpe_setup_merge"].bind(
            best_pair=self._best,
            table_status=self._status,
            state=state,
            merge_log=self._log,
            dispatch_args=self._args,
        )
        self._run_scan = kernels["bpe_run_scan"].bind(run_starts=self._run_starts, state=state)
        sums = {"block_sums": self._block_sums, "tile_sums": self._tile_sums, "state": state}
        self._scan1 = kernels["bpe_scan_pass1"].bind(**sums)
        self._scan2 = kernels["bpe_scan_pass2"].bind(tile_sums=self._tile_sums, state=state)
        self._scan3 = kernels["bpe_scan_pass3"].bind(**sums)
        self._run_reduce: list[BoundKernel] = []
        self._merge: list[BoundKernel] = []
        self._finalize: list[BoundKernel] = []
        for source, target in (self._symbols, self._symbols[::-1]):
            runs = {"symbols": source, "run_starts": self._run_starts, "state": state}
            mask = {"valid_mask": self._mask, "block_sums": self._block_sums}
            self._run_reduce.append(kernels["bpe_run_reduce"].bind(**runs))
            self._merge.append(kernels["bpe_merge_reduce_b"].bind(**runs, **mask))
            self._finalize.append(
                kernels["bpe_finalize_compact_b"].bind(
                    **mask, input_symbols=source, output_symbols=target, state=state
                )
            )

    def _bind_table(self, slots: int) -> None:
        """Make the pair table with this many slots and bind its kernels."""
        pool = self._device.pool
        self._table_slots = slots
        groups = -(-slots // (4 * self._wg))
        counts, ids = pool.get("pair counts", 4 * slots), pool.get("pair ids", 4 * slots)
        candidates = pool.get("candidates", 8 * groups)
        state, status = self._state, self._status
        table = {"pair_counts": counts, "pair_ids": ids, "state": state}
        self._clear = self._kernels["bpe_clear_table"].bind(
            **table, table_status=status, dispatch_args=self._args
        )
        self._count = [
            self._kernels["bpe_pair_count_b"].bind(**table, symbols=symbols, table_status=status)
            for symbols in self._symbols
        ]
        self._find = self._kernels["bpe_find_max4"].bind(**table, candidates=candidates)
        self._find_final = self._kernels["bpe_find_max_final_det"].bind(
            candidates=candidates, best_pair=self._best, state=state
        )

    def _record_iteration(self, commands: Commands, parity: int) -> None:
        slots, args = self._table_slots, self._args
        commands.dispatch(self._clear, -(-slots // self._wg))
        commands.dispatch_indirect(self._count[parity], args, _args("COUNT"))
        commands.dispatch(self._find, -(-slots // (4 * self._wg)))
        commands.dispatch(self._find_final, 1)
        commands.dispatch(self._setup, 1)
        commands.dispatch_indirect(self._run_reduce[parity], args, _args("RUNS"))
        commands.dispatch_indirect(self._run_scan, args, _args("RUN_SCAN"))
        commands.dispatch_indirect(self._merge[parity], args, _args("BLOCKS"))
        commands.dispatch_indirect(self._scan1, args, _args("SCAN"))
        commands.dispatch_indirect(self._scan2, args, _args("SINGLE"))
        commands.dispatch_indirect(self._scan3, args, _args("SCAN"))
        commands.dispatch_indirect(self._finalize[parity], args, _args("BLOCKS"))

    def run(self, merges: int, byte_ranks: NDArray[np.uint32], progress: Progress) -> TrainedMerges:
        """Iterate until all merges are made or no pair is frequent enough."""
        pending: deque[Download] = deque()
        spare = [Download(self._device) for _ in range(2)]
        most = MAX_TIMED // DISPATCHES if self._device.timing else MAX_ITERATIONS
        done, iterations, recorded = 0, 4, 0
        status, last = RUNNING, time.perf_counter()
        while True:
            while spare and status == RUNNING:
                pending.append(self._submit(recorded, iterations, spare.pop()))
                recorded += iterations
            if not pending:
                break
            download = pending.popleft()
            state = np.empty(1, STATE)
            download.finish(state.view(np.uint8))
            spare.append(download)
            done, status = int(state["merge_count"][0]), int(state["status"][0])
            progress("merging", done, merges)
            now = time.perf_counter()
            iterations = min(_next_iterations(iterations, now - last), most)
            last = now
            if status == TABLE_FULL and not pending:
                self._grow_table()
                status, recorded = RUNNING, done
        return self._result(done, int(state["next_symbol_count"][0]), byte_ranks)

    def _submit(self, first: int, iterations: int, download: Download) -> Download:
        commands = self._device.record()
        for k in range(first, first + iterations):
            self._record_iteration(commands, k & 1)
        self._device.submit(commands)
        download.start(self._state, STATE.itemsize)
        return download

    def _grow_table(self) -> None:
        self._bind_table(self._table_slots * TABLE_GROWTH)
        state = self._device.read(self._state, STATE.itemsize, np.uint8).view(STATE)
        state["table_size"] = self._table_slots
        state["status"] = RUNNING
        self._device.write(self._state, state)

    def _result(self, done: int, symbols: int, byte_ranks: NDArray[np.uint32]) -> TrainedMerges:
        log = self._device.read(self._log, 4 * done, np.uint32).reshape(done, 4)
        ids = np.arange(256 + done, dtype=np.uint32)
        ids[byte_ranks] = np.arange(256, dtype=np.uint32)  # rank -> id
        return TrainedMerges(ids[log[:, :2]], log[:, 2].astype(np.int64), symbols)


def _next_iterations(iterations: int, seconds: float) -> int:
    """Aim for SUBMIT_SECONDS a submission, changing by a factor of two at most."""
    factor = min(2.0, max(0.5, SUBMIT_SECONDS / max(seconds, 1e-4)))
    return max(1, int(iterations * factor))


def gpu_bytes(text_bytes: int) -> int:
    """Estimate the device memory, in bytes, that training on this much text takes."""
    return BYTES_PER_TEXT_BYTE * text_bytes + (64 << 20)
