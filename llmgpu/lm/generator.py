"""Continuing sequences of ids with a trained model, one id at a time for a whole batch.

A cache holds the keys and values of all ids, so the model computes only one row of activations for
a new id (`CachedRows`). A prompt is computed in blocks of rows. When a sequence reaches the longest
length of the model, the cache is filled again from the last half of the sequence's ids, and
generation continues.

The device chooses ids several steps before the host has read them. The host repeats each random
draw in float64 from the largest logits. The host's id is the valid one: if the device drew another
id, the device's later steps are dropped. If the largest logits do not determine the id, the host
reads all logits.

A `Continuation` is a request with stop strings: its text ends before the first of them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import DeviceError, InputError
from llmgpu.lm.config import EMBEDDING, FINAL_NORM
from llmgpu.lm.data.batches import check_ids
from llmgpu.lm.layers import Layer, Sequences
from llmgpu.lm.model import Model
from llmgpu.lm.ops.activations import ActivationTensors
from llmgpu.lm.ops.generating import MOST_LARGEST, logits_of
from llmgpu.lm.ops.linear import FEW_ROWS
from llmgpu.lm.ops.recording import Program
from llmgpu.lm.ops.tensor import AnyArray, HeadTensors, NewRows, Norm, Tensor
from llmgpu.lm.sampling import Sampler

MAX_STEPS = 16  # most steps of a submission
TIES = 55  # room for ids whose logits equal the k-th largest
PAIRS = 32  # pairs of 8 bytes in 256 bytes, as a device binds memory only at multiples of 256 bytes
PROMPT_ROWS = 64  # ids of prompts in a block
AHEAD = 2  # most submissions of steps that are queued on the device
STEPS_SECONDS = 0.02  # target duration of a submission


class Chosen(NamedTuple):
    """The ids that the device chose in a step, and the logits from which the ids were drawn.

    drawn: integers (rows,), the chosen ids. ids, logits: (rows, k), the k largest logits of each
    row and their ids, in descending order of logits; equal logits are in ascending order of ids.
    With k = 0: (rows, 1), the chosen ids and zeros. decides: (rows,), whether these logits
    determine the draw; False if there was no room for all equal logits, or if a logit is NaN.
    """

    drawn: AnyArray
    ids: AnyArray
    logits: AnyArray
    decides: NDArray[np.bool_]


class CachedRows:
    """A forward pass over `rows` new tokens, each of any sequence and at any position.

    In a mixed model, products of more than `FEW_ROWS` rows read half-precision operands.
    """

    def __init__(self, model: Model, caches: Sequence[Tensor], rows: int, ids: int) -> None:
        """Record the pass.

        caches: keys and values of each layer, (L, 2 * K * D); unused rows of the pass write to the
        last row of a cache. ids: number of ids with a token; later ids are never chosen.
        """
        self._model, self._ops = model, model.operations
        self.rows, self._ids = rows, ids
        ops, config = model.operations, model.config
        idle = caches[0].shape[0] - 1
        self._new = NewRows(
            ops.tensor("tokens", (rows,), np.uint32),
            ops.tensor("places", (2, rows), np.uint32),
            idle,
        )
        # Models with biases or norms of heads use the float32 tensors of `Layer`.
        self._is_half = model.mixed and config.has_plain_heads and rows > FEW_ROWS
        # Allocate the tensors of a pass, which all layers share.
        self._shape = model.attention_shape(1, config.seq_len)
        self._x = ops.tensor("residual", (rows, config.dim))
        self._inverse_rms = ops.tensor("norm's scale", (rows,))
        self._normed = self._operand("norm", config.dim)
        self.logits = ops.tensor("logits", (rows, config.padded_vocab_size))
        # Record two programs: `_layers` fills the cache, `_to_logits` also computes the logits.
        with ops.record("keys and values") as self._layers:
            ops.embed_lookup(self._new.tokens, model.working[EMBEDDING], self._x)
            if config.has_plain_heads:
                self._record_packed_layers(caches)
            else:
                self._record_layers(caches)
        with ops.record("logits") as output:
            ops.rms_norm(self._norm(FINAL_NORM), config.norm_epsilon)
            ops.linear(self._normed, model.output_weight, self.logits)
        self._to_logits = Program("to logits", self._layers.steps + output.steps)
        self._draws = ops.tensor("draws", (MAX_STEPS, rows, 4))
        # Results of steps, the likeliest ids or the largest logits as pairs, and programs by the
        # number of steps; both by k, see `choose`.
        self._found = {0: ops.tensor("chosen ids", (MAX_STEPS, rows), np.uint32)}
        self._programs: dict[tuple[int, int], Program] = {}

    def _operand(self, name: str, width: int) -> Tensor:
        """Create an operand of products, (rows, width)."""
        kind = np.float16 if self._is_half else np.float32
        return self._ops.tensor(name, (self.rows, width), kind)

    def _norm(self, weight: str) -> Norm:
        return Norm(self._x, self._model.weights[weight], self._normed, self._inverse_rms)

    def _record_packed_layers(self, caches: Sequence[Tensor]) -> None:
        """Record layers with one product for queries, keys and values, and one for gate and up."""
        model, ops, config = self._model, self._ops, self._model.config
        q, attended = (
            ops.tensor(name, (self.rows, config.query_dim)) for name in ("queries", "heads")
        )
        operand = self._operand("heads in half", config.query_dim) if self._is_half else attended
        activated = self._operand("activation", config.ffn_dim)
        activation = ActivationTensors(model.activation, (), activated)
        rotation = model.rotation(self._new.places)
        for layer, cache in enumerate(caches):
            prefix, weights = f"model.layers.{layer}", model.layers[layer]
            norm, heads = self._norm(f"{prefix}.input_layernorm.weight"), HeadTensors(q, cache)
            packed = weights.heads
            ops.heads_to_cache(norm, config.norm_epsilon, packed, rotation, heads)
            ops.attention_cached(heads, self._new.places, attended, self._shape)
            if self._is_half:
                ops.round_to_half(attended, operand)
            ops.linear(operand, weights.attention_out, self._x, residual=self._x)
            norm = self._norm(f"{prefix}.post_attention_layernorm.weight")
            ops.feed_forward(norm, config.norm_epsilon, weights.inner, activation)
            ops.linear(activated, weights.down, self._x, residual=self._x)

    def _record_layers(self, caches: Sequence[Tensor]) -> None:
        """Record layers whose queries, keys and values have biases or norms of heads."""
        layer = Layer(self._model, self.rows, "layer", mixed=False)
        rotation = self._model.rotation(self._new.places.part(0, self.rows))
        for weights, cache in zip(self._model.layers, caches, strict=True):
            rows = Sequences(rotation, self._new.places, self._shape, cache)
            layer.record(weights, self._x, self._x, rows)

    def write(self, rows: Sequence[tuple[int, int, int]]) -> None:
        """Set the first rows of the next pass; the remaining rows are not used.

        rows: for each its token, the token's position, and the cache row at which the token's
        sequence starts.
        """
        unused = [(0, 0, self._new.idle)] * (self.rows - len(rows))
        columns = np.array([*rows, *unused], np.uint32).T
        self._ops.write(self._new.tokens, columns[0])
        self._ops.write(self._new.places, columns[1:])

    def run(self) -> None:
        """Add the keys and values of the rows to the cache."""
        self._ops.run(self._layers)

    def find_logits(self) -> NDArray[np.float32]:
        """Add the keys and values of the rows to the cache.

        Returns the logits of the id after each row, float32 (rows, ids).
        """
        self._ops.run(self._to_logits)
        # Prepare the next run while the device computes.
        self._ops.prepare(self._to_logits)
        logits: NDArray[np.float32] = self._ops.read(self.logits)
        return logits[:, : self._ids]

    def choose(self, k: int, draws: AnyArray) -> Callable[[], list[Chosen]]:
        """Start `len(draws)` steps: each adds the rows to the cache and chooses the next ids.

        k: number of the largest logits to draw from; 0: the likeliest ids are chosen. draws:
        float32 (steps, rows, 4), see `Operations.draw_largest`; without effect if `k` is 0. Returns
        a function that waits for the steps and returns the result of each step.
        """
        ops, steps = self._ops, len(draws)
        if k:
            ops.write(self._draws.rows(0, steps), draws)
        if k not in self._found:
            # The pairs of a step take a multiple of 256 bytes, because a device binds a part of a
            # tensor only at such offsets.
            pairs = -(-(1 + k + TIES) // PAIRS) * PAIRS
            shape = (MAX_STEPS, self.rows, pairs, 2)
            self._found[k] = ops.tensor("largest logits", shape, np.uint32)
        found = self._found[k]
        if (k, steps) not in self._programs:
            joined = []
            for step in range(steps):
                with ops.record("choice") as choice:
                    self._record_choice(k, found, step)
                joined += self._to_logits.steps + choice.steps
            self._programs[k, steps] = Program(f"{steps} ids", joined)
        ops.run(self._programs[k, steps])
        finish = ops.begin_read(found.rows(0, steps))
        return lambda: [_chosen_of(rows, k) for rows in finish()]

    def _record_choice(self, k: int, found: Tensor, step: int) -> None:
        if not k:
            self._ops.take_likeliest(self.logits, self._ids, self._new, found, step)
            return
        part = found.rows(step, step + 1).reshaped(*found.shape[1:])
        self._ops.find_largest(self.logits, self._ids, k, part)
        self._ops.draw_largest(part, self._draws, self._new, step)


def _chosen_of(found: AnyArray, k: int) -> Chosen:
    """Decode the likeliest ids (rows,) of a step if `k` is 0.

    Otherwise decode the pairs (rows, 1 + capacity, 2) of `find_largest` and `draw_largest`.
    """
    if not k:
        return Chosen(found, found[:, None], np.zeros((len(found), 1)), np.ones(len(found), bool))
    drawn = found[:, 0, 1]
    # Read as 64-bit numbers, the pairs are in descending order of logits, then in ascending order
    # of ids.
    ascending = np.sort(np.ascontiguousarray(found).view("<u8")[:, 1:, 0], axis=1)[:, :k]
    inverted = (ascending >> np.uint64(32)).astype(np.uint32)
    ids = (ascending & np.uint64(0xFFFFFFFF)).astype(np.int64)
    decides = (found[:, 0, 0] < found.shape[1]) & (inverted[:, 0] != 0)
    return Chosen(drawn, ids, logits_of(inverted), decides)


@dataclass
class Request:
    """A prompt to be continued by up to `count` ids that `sampler` draws.

    stops: ids that end the sequence without becoming part of it.
    """

    prompt: Sequence[int]
    count: int
    sampler: Sampler
    stops: Set[int] = frozenset()

    def add(self, token: int) -> bool:
        """Receive a new id; return whether this id is the last."""
        return False


@dataclass
class _Sequence:
    """The state of a request in the batch.

    number: number of the request. row: index of this sequence's row in each step.
    ids: the prompt and all new ids. left: number of ids still to generate.
    done: number of ids whose keys and values are in the cache.
    """

    number: int
    row: int
    request: Request
    ids: list[int]
    left: int
    done: int = 0

    def add(self, token: int) -> bool:
        """Add the id that a step has chosen; the step has added all earlier ids to the cache.

        Returns False for an id of `stops`, which ends the sequence and is not added.
        """
        self.done = len(self.ids)
        if token in self.request.stops:
            self.left = 0
            return False
        self.ids.append(token)
        self.left = 0 if self.request.add(token) else self.left - 1
        return True


class Generator:
    """Continues sequences with a model."""

    def __init__(self, model: Model, ids: int | None = None, sequences: int = 1) -> None:
        """Allocate the caches, and record the passes of prompts and of steps.

        ids: number of ids with a token, by default all ids of the model; later ids are
            never chosen. sequences: number of sequences in a batch.

        Raises DeviceError if the device can't bind the keys and values of a layer.
        """
        config = model.config
        self._config = config
        self._sequences = sequences
        shape = (sequences * config.seq_len + 1, 2 * config.kv_dim)
        needed, limit = 4 * shape[0] * shape[1], model.operations.max_tensor_bytes
        if needed > limit:
            raise DeviceError(
                f"keys and values of {sequences} sequences of {config.seq_len} tokens take "
                f"{needed:,} bytes per layer, but the device binds at most {limit:,}; use a "
                "smaller --batch-size or fewer --max-new-tokens"
            )
        caches = [
            model.operations.tensor(f"layer {layer} keys and values", shape)
            for layer in range(config.layers)
        ]
        rows = min(PROMPT_ROWS, sequences * config.seq_len)
        self._ids = config.vocab_size if ids is None else ids
        self._step = CachedRows(model, caches, sequences, self._ids)
        self._block = CachedRows(model, caches, rows, self._ids)
        # Queueing steps saves no time if the host itself computes them.
        self._ahead_most = AHEAD if model.operations.is_asynchronous else 1
        self._steps = 1  # number of steps of the next submission
        self._needs_all = False  # whether the next step needs all logits on the host

    def continue_all(self, requests: Iterable[Request]) -> Iterator[tuple[int, int | None]]:
        """Yield (number of the request, id) for each new id, and (number, None) after the last id.

        `requests` is consumed only when the batch has room. The ids of a request do not depend on
        other requests; they depend on the size of the batch only by rounding.

        Raises:
            InputError: a prompt is empty or has an id beyond the vocabulary.
        """
        waiting = enumerate(requests)
        working: list[_Sequence] = []
        while True:
            # Replace finished sequences by new requests.
            yield from ((s.number, None) for s in working if not s.left)
            working = [s for s in working if s.left]
            yield from self._admit(waiting, working)
            if not working:
                return
            # Fill the cache, then generate ids until a sequence ends or is full.
            self._take_in(working)
            largest = self._largest_wanted(working)
            if largest is None or self._needs_all:
                self._needs_all = False
                yield from self._drawn(working)
            else:
                yield from self._chosen_ahead(working, largest)

    def _admit(
        self, waiting: Iterator[tuple[int, Request]], working: list[_Sequence]
    ) -> Iterator[tuple[int, None]]:
        """Add requests to `working` while the batch has room; a request for 0 ids ends at once."""
        free = sorted(set(range(self._sequences)) - {s.row for s in working})
        while free and (following := next(waiting, None)):
            number, request = following
            if not request.prompt:
                raise InputError("the prompt is empty; give at least one token")
            check_ids(request.prompt, self._ids, "the prompt can't be used")
            if request.count < 1:
                yield number, None
                continue
            row, ids = free.pop(0), list(request.prompt)
            working.append(_Sequence(number, row, request, ids, request.count))

    def _take_in(self, working: Sequence[_Sequence]) -> None:
        """Add all ids of each sequence except the last id to the cache, in blocks of rows.

        A sequence of more than seq_len ids keeps its last seq_len // 2 ids, from position 0 on.
        """
        length = self._config.seq_len
        rows: list[tuple[int, int, int]] = []
        for s in working:
            if len(s.ids) > length:
                s.ids, s.done = s.ids[-max(1, length // 2) :], 0
            start, last = s.row * length, len(s.ids) - 1
            rows += [(s.ids[place], place, start) for place in range(s.done, last)]
            s.done = last
        for first in range(0, len(rows), self._block.rows):
            self._block.write(rows[first : first + self._block.rows])
            self._block.run()

    def _write_last(self, working: Sequence[_Sequence]) -> None:
        """Set the rows of a step to the last id of each sequence."""
        length = self._config.seq_len
        rows = [(0, 0, self._sequences * length)] * self._sequences
        for s in working:
            rows[s.row] = (s.ids[-1], len(s.ids) - 1, s.row * length)
        self._step.write(rows)

    def _drawn(self, working: Sequence[_Sequence]) -> Iterator[tuple[int, int]]:
        """Yield the next id of each sequence, drawn on the host from all logits."""
        self._write_last(working)
        logits = self._step.find_logits()
        for s, token in [(s, s.request.sampler.draw(logits[s.row])) for s in working]:
            if s.add(token):
                yield s.number, token

    def _largest_wanted(self, working: Sequence[_Sequence]) -> int | None:
        """Return how many of the largest logits determine the draws of all sequences.

        0 if the likeliest id is always drawn, None if the device can't find so many logits.
        """
        wanted = [s.request.sampler.largest_wanted(self._ids) for s in working]
        most = max(MOST_LARGEST + 1 if k is None else k for k in wanted)
        return most if most <= MOST_LARGEST else None

    def _chosen_ahead(self, working: Sequence[_Sequence], k: int) -> Iterator[tuple[int, int]]:
        """Yield the ids of step after step, drawn from the k largest logits.

        A few submissions of steps are queued while the host reads results. The device draws ids
        itself, so it goes on to later steps without waiting for the host. The sampler repeats each
        draw, and its id is used. If the device drew another id, or if the sequence has ended, the
        device's later steps for that sequence are dropped. If the largest logits of a step do not
        determine the id of a sequence, this step and all later steps are dropped for all sequences,
        and `_drawn` draws the next ids.
        """
        self._write_last(working)
        room = min(min(s.left, self._config.seq_len - len(s.ids) + 1) for s in working)
        following = list(working)  # host and device have drawn the same ids so far
        unread = 0  # number of steps that were submitted and are not read yet
        ahead: deque[Callable[[], list[Chosen]]] = deque()
        last = time.perf_counter()
        while room or ahead:
            # Submit steps before their results are read, as long as every sequence takes the ids
            # that the device chooses.
            while room and len(ahead) < self._ahead_most:
                draws = np.zeros((min(self._steps, room), self._sequences, 4), np.float32)
                for s in working if k else ():  # likeliest ids need no random numbers
                    draws[:, s.row] = s.request.sampler.draws_ahead(unread, len(draws))
                ahead.append(self._step.choose(k, draws))
                room -= len(draws)
                unread += len(draws)
            # Read the steps of a submission.
            for found in ahead.popleft()():
                unread -= 1
                if not all(found.decides[s.row] for s in following):
                    self._needs_all = True
                    following = []
                for s in following:
                    token = s.request.sampler.draw_largest(found.ids[s.row], found.logits[s.row])
                    if s.add(token):
                        yield s.number, token
                following = [s for s in following if s.left and s.ids[-1] == found.drawn[s.row]]
            if len(following) < len(working):
                room = 0
            # Choose the number of steps of the next submission by the duration of the last one.
            now = time.perf_counter()
            took, last = now - last, now
            if took > STEPS_SECONDS:
                self._steps = max(1, self._steps // 2)
            elif self._ahead_most > 1:
                self._steps = min(2 * self._steps, MAX_STEPS)


class StopStrings:
    """The bytes of a growing text, up to the first stop string.

    found: whether the text has reached a stop string; then no more bytes may be added. data: all
    bytes before the stop string.
    """

    def __init__(self, stops: Sequence[bytes] = ()) -> None:
        """Start without text; each stop string has at least one byte."""
        self._stops = stops
        self.data = bytearray()
        self.found = False
        self._given = 0

    def add(self, piece: bytes) -> bool:
        """Add bytes; return whether the text has ended."""
        before = len(self.data)
        self.data += piece
        longest = max(map(len, self._stops), default=0)
        places = [self.data.find(stop, max(0, before - longest + 1)) for stop in self._stops]
        if any(place >= 0 for place in places):
            del self.data[min(place for place in places if place >= 0) :]
            self.found = True
        return self.found

    def take(self, *, last: bool = False) -> bytes:
        """Return the bytes since the last call; hold back bytes that may begin a stop string.

        last: no more bytes will be added, so return all bytes.
        """
        end = len(self.data)
        if not (last or self.found):
            end -= max((self._begun(stop) for stop in self._stops), default=0)
        taken = bytes(self.data[self._given : end])
        self._given = max(end, self._given)
        return taken

    def _begun(self, stop: bytes) -> int:
        """Return the length of the text's longest suffix that is a prefix of the stop string."""
        sizes = range(min(len(stop) - 1, len(self.data)), 0, -1)
        return next((size for size in sizes if self.data.endswith(stop[:size])), 0)


@dataclass(kw_only=True)
class Continuation(Request):
    """A request that collects its new ids and their text, and ends before one of the stop strings.

    ids: the new ids after the prompt. text: the bytes of these ids.
    """

    vocabulary: Vocabulary
    stop_strings: Sequence[bytes] = ()

    def __post_init__(self) -> None:
        self.text, self.ids = StopStrings(self.stop_strings), list[int]()
        self.sampler.see(self.prompt)

    def add(self, token: int) -> bool:
        self.ids.append(token)
        return self.text.add(self.vocabulary.tokens[token])

    def describe(self) -> dict[str, Any]:
        """Return the text, the ids and the reason for the end, for JSON output."""
        is_full = len(self.ids) >= self.count and not self.text.found
        found: dict[str, Any] = {
            "text": self.text.data.decode("utf-8", "replace"),
            "finish": "length" if is_full else "stop",
            "ids": self.ids,
        }
        # The last log-probability may be of an id in `stops`, which is not in `ids`.
        if self.sampler.log_probabilities:
            values = self.sampler.log_probabilities[: len(self.ids)]
            found["logprobs"] = [round(each, 6) for each in values]
        return found
