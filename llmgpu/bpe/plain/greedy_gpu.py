"""Tokenizing on a GPU: greedy longest match by a trie walk, kernels in wgsl/trie.

A slice takes one submission: the text is uploaded, the starts of pre-tokens are marked, six kernels
run, and the number of ids is copied to the host. Then the host fetches exactly this number of ids.
The position of the next slice's first token stays on the device.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from weakref import proxy

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.arrays import PADDING
from llmgpu.bpe.encoding.encoder import Allocate, EncodedSlice, NoTokenError, new_ids
from llmgpu.bpe.encoding.encoder_c import host_slices
from llmgpu.bpe.encoding.encoder_host import HostSlices, stream_lookahead
from llmgpu.bpe.pretokens.pretoken_gpu import GpuPretokenizer, submitted_slices
from llmgpu.bpe.pretokens.slices import Slice, SliceReader, SliceSource
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import CapacityError
from llmgpu.forking import cached_property
from llmgpu.gpu.adapters import Buffer
from llmgpu.gpu.commands import Download, Staging
from llmgpu.gpu.device import Device
from llmgpu.kernel_source import constant, struct_dtype
from llmgpu.spelling import spelled
from llmgpu.text.corpus import TextSource

_FILE = "trie/params.wgsl"
PARAMS = struct_dtype(_FILE, "TrieParams")
NO_TOKEN, NO_BYTE = constant(_FILE, "NO_TOKEN"), constant(_FILE, "NO_BYTE")
STATE_CARRY, STATE_TOTAL, STATE_UNMATCHED, STATE_UNMATCHED_BYTE = (
    constant(_FILE, f"STATE_{name}") for name in ("CARRY", "TOTAL", "UNMATCHED", "UNMATCHED_BYTE")
)
STATE_WORDS = 4
SLICE_BYTES = 16 << 20
SOFTWARE_SLICE_BYTES = 2 << 20
SHORTEST_SLICE_BYTES = 1 << 16  # least size of slices, however short the announced text is
CHUNK_BYTES = 256
MAX_CHUNK_BYTES = constant("trie/01_long_exit.wgsl", "MAX_CHUNK")
COMPACT_WORKGROUP = 64
# The kernels of a slice except the last, in the order in which they run.
KERNELS = "00_chunk_entry", "01_long_exit", "02_long_chain", "03_tokenizer_chunked", "04_prefix_sum"
# Loop iterations for each byte of a match: one step, and a binary search among 256 children.
STEPS_PER_BYTE = 9


class GpuGreedyEncoder:
    """Encodes texts by longest match, with one vocabulary on one device."""

    def __init__(
        self,
        device: Device,
        vocabulary: Vocabulary,
        slice_bytes: int | None = None,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        text_bytes: int | None = None,
    ) -> None:
        """Compile the kernels and upload the trie.

        slice_bytes, chunk_bytes: largest size of a slice, and of a chunk, which one thread matches.
        text_bytes: see `expect`. The ids depend on none of them.

        Raises:
            CapacityError: the adapter's limits are too small for the vocabulary.
            ValueError: chunk_bytes is out of range.
        """
        if not 1 <= chunk_bytes <= MAX_CHUNK_BYTES:
            raise ValueError(
                f"chunk_bytes is {chunk_bytes}, but must be from 1 to {MAX_CHUNK_BYTES}"
            )
        self._device = device
        self._vocabulary = vocabulary
        self._chunk_bytes = chunk_bytes = min(
            chunk_bytes, _positions_per_thread(device, vocabulary)
        )
        self._lookahead = stream_lookahead(vocabulary)
        # A slice fits into one binding, and its chunks into one loop.
        if slice_bytes is None:
            slice_bytes = SOFTWARE_SLICE_BYTES if device.is_software else SLICE_BYTES
        chunks = min(device.max_binding_bytes // 4 // chunk_bytes, device.max_loop_iterations)
        most = chunks * chunk_bytes
        self._least_bytes = min(2 * vocabulary.trie.longest + PADDING + 1, most)
        self._slice_bytes = min(max(slice_bytes, self._least_bytes), most)
        self.expect(text_bytes)
        files = {f"trie/{name}": {"LOOK_BACK": chunk_bytes} for name in KERNELS}
        files["trie/05_tokenizer_compact"] = {"WORKGROUP_SIZE": COMPACT_WORKGROUP}
        self._kernels = [*device.prepare(files).values()]
        self._shared = {
            "nodes": device.upload("trie nodes", vocabulary.trie.nodes),
            "edges": device.upload("trie edges", vocabulary.trie.edges),
        }
        self._idle: list[_Slot] = []  # slots of finished texts, for the next text

    def expect(self, text_bytes: int | None) -> None:
        """Announce the length of the next text in bytes; None if unknown."""
        size = self._slice_bytes
        if text_bytes is not None:
            # A power of two: the next text of about this length finds buffers that are large
            # enough.
            wanted = max(SHORTEST_SLICE_BYTES, 1 << (text_bytes + PADDING).bit_length())
            size = min(size, max(wanted, self._least_bytes))
        self._slot_bytes = size

    def make_shared_buffers(self, slice_bytes: int) -> dict[str, Buffer]:
        """Create the buffers that all slots share; slices use the buffers one after the other."""
        chunks = -(-slice_bytes // self._chunk_bytes)
        sizes = {
            "chunk_entries": 8 * chunks,
            "token_output": 4 * chunks * self._chunk_bytes,
            "chunk_counts": 4 * chunks,
            "chunk_offsets": 4 * chunks,
            "slice_state": 4 * STATE_WORDS,
            "long_args": 24,
        }
        create = self._device.create_buffer
        # The key of a buffer is the buffer's name in the kernels.
        made = {name: create(name.replace("_", " "), size) for name, size in sizes.items()}
        return self._shared | made

    @cached_property
    def _host(self) -> HostSlices:
        return host_slices(self._vocabulary)

    def encode_on_host(self, piece: Slice) -> EncodedSlice:
        """Encode on the CPU a slice that is too large for the device, or has undecided starts."""
        return self._host.encode(piece, 0)[0]

    def encode(self, source: TextSource, allocate: Allocate = new_ids) -> Iterator[EncodedSlice]:
        """Yield the ids of a text in order; see `llmgpu.bpe.encoding.encoder.Encoder.encode`."""
        reader = SliceReader(source, self._vocabulary.cut, self._lookahead)
        return self.encode_slices(reader, allocate)

    def encode_slices(
        self, reader: SliceSource, allocate: Allocate = new_ids
    ) -> Generator[EncodedSlice, None, None]:
        """Yield the ids of all slices of `reader` in order; see `encode`."""
        # Use the slots of an earlier text again if they are large enough.
        slots, self._idle = self._idle, []
        if slots and slots[0].slice_bytes < self._slot_bytes:
            slots = []
        size = slots[0].slice_bytes if slots else self._slot_bytes
        shared = slots[0].shared if slots else self.make_shared_buffers(size)
        first_state = np.zeros(STATE_WORDS, np.uint32)
        first_state[STATE_UNMATCHED] = NO_BYTE
        self._device.write(shared["slice_state"], first_state)
        carry = 0  # offset of the first token in the next slice
        for slot, piece in submitted_slices(reader, slots, lambda: _Slot(self, shared, size), size):
            # The device can't encode this slice.
            if piece.apart:
                yield self.encode_on_host(piece)
                continue
            is_decided, state = slot.wait()
            if not is_decided:
                yield self.encode_on_host(slot.pretokenizer.read_back(piece))
                continue
            # Fetch the ids, then convert the starts of documents to indices of ids.
            ids = allocate(int(state[STATE_TOTAL]))
            slot.fetch(ids)
            if state[STATE_UNMATCHED] != NO_BYTE:
                offset = piece.offset + int(state[STATE_UNMATCHED])
                raise NoTokenError(int(state[STATE_UNMATCHED_BYTE]), offset)
            starts = self._document_starts(ids, carry, piece.document_starts)
            carry = int(state[STATE_CARRY])
            yield EncodedSlice(ids, starts, piece.main_end, piece.closed)
        self._idle = slots

    def _document_starts(
        self, ids: NDArray[np.uint32], carry: int, positions: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Convert positions in the slice's bytes to indices in `ids`, int64 (documents,).

        carry: offset of the slice's first token in the slice, in bytes.
        """
        if len(positions) == 0 or positions[-1] == 0:
            return np.zeros(len(positions), np.int64)
        lengths = self._vocabulary.token_spans[ids]
        token_starts = carry + np.cumsum(lengths) - lengths
        return np.searchsorted(token_starts, positions, side="left")


class _Slot:
    """Buffers and bound kernels of one slice of up to `slice_bytes`.

    shared: the buffers that all slots share.
    """

    def __init__(
        self, encoder: GpuGreedyEncoder, shared: dict[str, Buffer], slice_bytes: int
    ) -> None:
        # A proxy avoids a reference cycle, because the encoder refers to its slots.
        self._encoder: GpuGreedyEncoder = proxy(encoder)
        self.shared, self.slice_bytes = shared, slice_bytes
        device = self._device = encoder._device
        self.staging = Staging(device, slice_bytes)
        self.pretokenizer = GpuPretokenizer(device, encoder._vocabulary.cut, slice_bytes)
        self._compact = device.create_buffer("compact output", 4 * slice_bytes)
        self._params = device.create_buffer("trie params", PARAMS.itemsize)
        self._state_copy, self._ids_copy = Download(device), Download(device)
        buffers = shared | {
            "input": self.pretokenizer.text,
            "start_bits": self.pretokenizer.start_bits,
            "compact_output": self._compact,
            "params": self._params,
        }
        self._bound = [kernel.bind_from(buffers) for kernel in encoder._kernels]

    def submit(self, piece: Slice) -> None:
        """Submit the slice that was read into the staging memory."""
        device, encoder = self._device, self._encoder
        chunk_entry, long_exit, long_chain, tokenizer, prefix_sum, compact = self._bound
        chunks = -(-piece.main_end // encoder._chunk_bytes)
        self._write_params(piece, chunks)
        chunk_groups = -(-chunks // device.workgroup_size)
        commands = device.record()
        self.staging.copy_to(commands, self.pretokenizer.text, piece.length)
        self.pretokenizer.record(commands, piece)
        commands.dispatch(chunk_entry, chunk_groups)
        commands.dispatch_indirect(long_exit, self.shared["long_args"], 0)
        commands.dispatch_indirect(long_chain, self.shared["long_args"], 12)
        commands.dispatch(tokenizer, chunk_groups)
        commands.dispatch(prefix_sum, 1)
        commands.dispatch(compact, chunks)
        states = (self.shared["slice_state"], 4 * STATE_WORDS), (self.pretokenizer.undecided, 4)
        self._state_copy.record(commands, *states)
        commands.submit()

    def _write_params(self, piece: Slice, chunks: int) -> None:
        encoder, vocabulary = self._encoder, self._encoder._vocabulary
        unknown = vocabulary.unknown_token
        params = np.zeros(1, PARAMS)
        params["input_length"] = piece.main_end if encoder._lookahead is None else piece.length
        params["chunk_size"] = params["max_tokens_per_chunk"] = encoder._chunk_bytes
        params["main_end"] = piece.main_end
        params["unknown_token"] = NO_TOKEN if unknown is None else unknown
        params["chunk_count"] = chunks
        self._device.write(self._params, params)
        # Write the dispatch arguments, (x, y, z) in workgroups, of the kernels long_exit and
        # long_chain. Their x stays 0 unless the kernel trie_chunk_entry finds a chunk that needs
        # them.
        rows = [-(-chunks // 65_535), -(-chunks // self._device.workgroup_size // 65_535)]
        long_args = [0, max(1, rows[0]), 1, 0, max(1, rows[1]), 1]
        self._device.write(self.shared["long_args"], np.array(long_args, np.uint32))

    def wait(self) -> tuple[bool, NDArray[np.uint32]]:
        """Wait for the slice; return whether all pre-token starts are decided, and the final state.

        The state is uint32 (STATE_WORDS,), indexed by STATE_CARRY and the other STATE_ constants.
        """
        state, undecided = np.empty(STATE_WORDS, np.uint32), np.empty(1, np.uint32)
        self._state_copy.finish(state.view(np.uint8), undecided.view(np.uint8))
        return not undecided[0], state

    def fetch(self, ids: NDArray[np.uint32]) -> None:
        """Copy the slice's ids to `ids`, whose length is the number of ids."""
        if len(ids):
            self._ids_copy.start((self._compact, ids.nbytes))
            self._ids_copy.finish(ids.view(np.uint8))


def _positions_per_thread(device: Device, vocabulary: Vocabulary) -> int:
    """Return the number of positions at which a thread may match in one dispatch, 1 or more.

    Adapters limit the loop iterations of a thread. Matching at one position reads up to as many
    bytes as the longest token has, and takes STEPS_PER_BYTE iterations for each byte.
    """
    longest = max(1, vocabulary.trie.longest)
    positions = device.max_loop_iterations // (STEPS_PER_BYTE * longest + 2)
    if positions < 1:
        raise CapacityError(
            f"the vocabulary's longest token has {longest} bytes, but {device.name} matches at "
            f"most {device.max_loop_iterations // STEPS_PER_BYTE}; use {spelled('--device cpu')}"
        )
    return positions
