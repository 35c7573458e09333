"""Continuing sequences of ids with a trained model, one id at a time for a whole batch.

A cache holds the keys and values of all ids, so the model computes only one row of activations for
a new id. A prompt is computed in blocks of rows. When a sequence reaches the longest length of the
model, the cache is filled again from the last half of the sequence's ids, and generation continues.

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
from typing import Any, TypeVar

import numpy as np

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import DeviceError, InputError
from llmgpu.lm.data.token_source import check_ids
from llmgpu.lm.generating.cached_rows import MAX_STEPS, CachedRows, Largest
from llmgpu.lm.generating.sampling import Sampler
from llmgpu.lm.model import Model
from llmgpu.lm.ops.generating import MOST_LARGEST

PROMPT_ROWS = 64  # ids of prompts in a block
AHEAD = 2  # most submissions of steps that are queued on the device
STEPS_SECONDS = 0.02  # target duration of a submission

T = TypeVar("T")


@dataclass
class Request:
    """A prompt to be continued by up to `count` ids that `sampler` draws.

    stops: ids that end the sequence without becoming part of it. ends: called with each new id;
    returns whether this id is the last.
    """

    prompt: Sequence[int]
    count: int
    sampler: Sampler
    stops: Set[int] = frozenset()
    ends: Callable[[int], bool] = lambda token: False


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
        self.left = 0 if self.request.ends(token) else self.left - 1
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
        self._block = self._step
        if rows != sequences:
            self._block = CachedRows(model, caches, rows, self._ids)
        # Queueing steps saves no time if the host itself computes them.
        self._ahead_most = AHEAD if model.operations.is_asynchronous else 1
        self._steps = 1  # number of steps of the next submission
        self._needs_all = False  # whether the next step needs all logits on the host

    def generate(self, prompt: Sequence[int], count: int, sampler: Sampler) -> Iterator[int]:
        """Yield the `count` ids after `prompt`; `sampler` draws each id from the model's logits.

        Raises:
            InputError: the prompt is empty or has an id beyond the vocabulary.
        """
        for _, token in self.continue_all([Request(prompt, count, sampler)]):
            if token is not None:
                yield token

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
            for sequence in working:
                self._restart_if_full(sequence)
            self._take_in(working)
            largest = self._largest_wanted(working)
            if all(s.request.sampler.is_greedy for s in working):
                yield from self._likeliest(working)
            elif largest is None or self._needs_all:
                self._needs_all = False
                yield from self._drawn(working)
            else:
                yield from self._drawn_ahead(working, largest)

    def _admit(
        self, waiting: Iterator[tuple[int, Request]], working: list[_Sequence]
    ) -> Iterator[tuple[int, None]]:
        """Add requests to `working` while the batch has room; a request for 0 ids ends at once."""
        free = sorted(set(range(self._sequences)) - {s.row for s in working})
        while free:
            number, request = next(waiting, (None, None))
            if number is None or request is None:
                return
            self._check(request.prompt)
            if request.count < 1:
                yield number, None
                continue
            row, ids = free.pop(0), list(request.prompt)
            working.append(_Sequence(number, row, request, ids, request.count))

    def _restart_if_full(self, sequence: _Sequence) -> None:
        """Keep only the last half of a sequence that has become too long, from position 0 on."""
        length = self._config.seq_len
        if len(sequence.ids) > length:
            sequence.ids, sequence.done = sequence.ids[-max(1, length // 2) :], 0

    def _take_in(self, working: Sequence[_Sequence]) -> None:
        """Add all ids of each sequence except the last id to the cache, in blocks of rows."""
        rows: list[tuple[int, int, int]] = []
        for s in working:
            start, last = self._start(s), len(s.ids) - 1
            rows += [(s.ids[place], place, start) for place in range(s.done, last)]
            s.done = last
        for first in range(0, len(rows), self._block.rows):
            self._block.write(*zip(*rows[first : first + self._block.rows], strict=True))
            self._block.run()

    def _start(self, sequence: _Sequence) -> int:
        return sequence.row * self._config.seq_len

    def _write_last(self, working: Sequence[_Sequence]) -> None:
        """Set the rows of a step to the last id of each sequence."""
        rows = [(0, 0, self._sequences * self._config.seq_len)] * self._sequences
        for s in working:
            rows[s.row] = (s.ids[-1], len(s.ids) - 1, self._start(s))
        self._step.write(*zip(*rows, strict=True))

    def _drawn(self, working: Sequence[_Sequence]) -> Iterator[tuple[int, int]]:
        """Yield the next id of each sequence, drawn on the host from all logits."""
        self._write_last(working)
        logits = self._step.find_logits()
        for s, token in [(s, s.request.sampler.draw(logits[s.row])) for s in working]:
            if s.add(token):
                yield s.number, token

    def _largest_wanted(self, working: Sequence[_Sequence]) -> int | None:
        """Return how many of the largest logits determine the draws of all sequences.

        None if the device can't find so many logits.
        """
        wanted = [s.request.sampler.largest_wanted(self._ids) for s in working]
        most = max(MOST_LARGEST + 1 if k is None else k for k in wanted)
        return most if most <= MOST_LARGEST else None

    def _drawn_ahead(self, working: Sequence[_Sequence], k: int) -> Iterator[tuple[int, int]]:
        """Yield the ids of each step, drawn from the k largest logits.

        The device draws ids itself, so it goes on to later steps without waiting for the host. The
        sampler repeats each draw, and its id is used. If the device drew another id, the device's
        later steps for that sequence are dropped. If the largest logits of a step do not determine
        the id, all later steps are dropped, and `_drawn` draws the next ids.
        """
        given = 0  # number of draws that the device has made and the host has not repeated yet

        def start(steps: int) -> Callable[[], list[Largest]]:
            nonlocal given
            draws = np.zeros((steps, self._sequences, 4), np.float32)
            for s in working:
                draws[:, s.row] = s.request.sampler.draws_ahead(given, steps)
            given += steps
            return self._step.take_drawn(k, draws)

        # `following` has the sequences for which host and device have drawn the same ids so far.
        following = list(working)
        for found in self._ahead(working, start, lambda: len(following) == len(working)):
            given -= 1
            if not all(found.decides[s.row] for s in following):
                self._needs_all = True
                following.clear()
            for s in following:
                token = s.request.sampler.draw_largest(found.ids[s.row], found.logits[s.row])
                if s.add(token):
                    yield s.number, token
            following[:] = [s for s in following if s.left and s.ids[-1] == found.drawn[s.row]]

    def _likeliest(self, working: Sequence[_Sequence]) -> Iterator[tuple[int, int]]:
        """Yield the likeliest ids of step after step, until a sequence ends or is full."""
        for ids in self._ahead(
            working, self._step.take_likeliest, lambda: all(s.left for s in working)
        ):
            chosen = ids.tolist()
            for s in working:
                # Queued steps may continue a sequence after its end: skip these ids.
                if s.left and s.add(chosen[s.row]):
                    yield s.number, s.ids[-1]

    def _ahead(
        self,
        working: Sequence[_Sequence],
        start: Callable[[int], Callable[[], Iterable[T]]],
        is_wanted: Callable[[], bool],
    ) -> Iterator[T]:
        """Yield the results of steps; a few submissions are queued while the host reads results.

        start: submits a number of steps; returns a function that waits for their results.
        is_wanted: called after the results of each submission; returns whether to submit more.
        """
        self._write_last(working)
        room = min(min(s.left, self._config.seq_len - len(s.ids) + 1) for s in working)
        ahead: deque[Callable[[], Iterable[T]]] = deque()
        last = time.perf_counter()
        while True:
            while room and len(ahead) < self._ahead_most:
                steps = min(self._steps, room)
                ahead.append(start(steps))
                room -= steps
            if not ahead:
                return
            yield from ahead.popleft()()
            if not is_wanted():
                room = 0
            now = time.perf_counter()
            self._pace(now - last)
            last = now

    def _pace(self, took: float) -> None:
        """Choose the number of steps of the next submission by the duration of the last one."""
        if took > STEPS_SECONDS:
            self._steps = max(1, self._steps // 2)
        elif self._ahead_most > 1:
            self._steps = min(2 * self._steps, MAX_STEPS)

    def _check(self, ids: Sequence[int]) -> None:
        if not ids:
            raise InputError("the prompt is empty; give at least one token")
        try:
            check_ids(ids, self._ids)
        except InputError as error:
            raise InputError(f"the prompt can't be used: {error}") from error


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


@dataclass(frozen=True)
class Ends:
    """The ends of a continuation: after `count` ids, or before one of `ids` or `texts`."""

    count: int
    ids: frozenset[int]
    texts: tuple[bytes, ...]


class Continuation(Request):
    """A request that collects its new ids and their text, and ends at a stop string.

    ids: the new ids after the prompt. text: the bytes of these ids.
    """

    def __init__(
        self, vocabulary: Vocabulary, prompt: list[int], sampler: Sampler, ends: Ends
    ) -> None:
        super().__init__(prompt, ends.count, sampler, ends.ids, self._add)
        self._vocabulary = vocabulary
        self.text = StopStrings(ends.texts)
        self.ids: list[int] = []
        sampler.see(prompt)

    def _add(self, token: int) -> bool:
        """Add an id; return whether the text has ended."""
        self.ids.append(token)
        return self.text.add(self._vocabulary.tokens[token])

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
