"""Continuing a sequence of ids with a trained model, one id at a time.

Keys and values of all ids so far are kept (a cache), so that a new id costs one row. A prompt goes
through in blocks of rows. When the longest sequence of the model is reached, the cache is filled
again from the last half of the ids, and generation continues.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from llmgpu.errors import InputError
from llmgpu.lm.data.token_source import check_ids
from llmgpu.lm.generating.sampling import Sampler
from llmgpu.lm.model import EMBEDDING, FINAL_NORM, LayerActivations, Model
from llmgpu.lm.ops.operations import AttentionTensors, KeyValues, Norm, Program

PROMPT_ROWS = 64  # ids of a prompt that go through at a time


class CachedRows:
    """A forward pass over `rows` ids of one sequence, whose keys and values are kept."""

    def __init__(self, model: Model, caches: Sequence[KeyValues], rows: int) -> None:
        """Record the pass; `caches` are each layer's keys and values, (T + 1, K*D)."""
        self._model = model
        self._ops = model.operations
        self.rows = rows
        config = model.config
        self._shape = model.attention_shape(1, config.seq_len)
        self._tokens = self._ops.tensor("tokens", (rows,), np.uint32)
        self._positions = self._ops.tensor("positions", (rows,), np.uint32)
        x = self._ops.tensor("residual", (rows, config.dim))
        normed = self._ops.tensor("final norm", (rows, config.dim))
        scale = self._ops.tensor("final norm's scale", (rows,))
        activations = LayerActivations.make(self._ops, config, rows, "layer", x)
        self.logits = self._ops.tensor("logits", (rows, config.padded_vocab_size))
        with self._ops.record("keys and values") as self._layers:
            self._ops.embed_lookup(self._tokens, model.working[EMBEDDING], x)
            for layer, cache in enumerate(caches):
                attend = partial(self._attend, cache)
                model.record_layer(layer, x, self._positions, activations, attend)
        with self._ops.record("logits") as output:
            norm = Norm(x, model.weights[FINAL_NORM], normed, scale)
            self._ops.rms_norm(norm, config.norm_epsilon)
            self._ops.linear(normed, model.output_weight, self.logits)
        self._to_logits = Program("to logits", self._layers.steps + output.steps)

    def _attend(self, cache: KeyValues, a: AttentionTensors) -> None:
        for rows, cached in zip((a.k, a.v), cache, strict=True):
            self._ops.cache_append(rows, cached, self._positions)
        self._ops.attention_cached(a.q, cache, self._positions, a.out, self._shape)

    def run(self, ids: Sequence[int], start: int) -> None:
        """Take in up to `rows` ids, the first of them at position `start`."""
        self._write(ids, start)
        self._ops.run(self._layers)

    def _write(self, ids: Sequence[int], start: int) -> None:
        unused = self._model.config.seq_len  # a position whose keys and values are never read
        # Rows that are not used write to a position that no query sees.
        tokens = np.zeros(self.rows, np.uint32)
        positions = np.full(self.rows, unused, np.uint32)
        tokens[: len(ids)] = ids
        positions[: len(ids)] = np.arange(start, start + len(ids))
        self._ops.write(self._tokens, tokens)
        self._ops.write(self._positions, positions)

    def logits_after(self, token: int, position: int) -> NDArray[np.float32]:
        """Take in one id; return the logits of all tokens after it, (vocabulary size,)."""
        self._write([token], position)
        self._ops.run(self._to_logits)
        # Those of the next id are recorded while the device is at work.
        self._ops.prepare(self._to_logits)
        logits: NDArray[np.float32] = self._ops.read(self.logits.rows(0, 1))[0]
        return logits[: self._model.config.vocab_size]


class Generator:
    """Continues sequences with a model."""

    def __init__(self, model: Model, ids: int | None = None) -> None:
        """Make the caches and record a pass over a block of a prompt and one over a single id.

        ids: how many of the model's first ids stand for tokens; all by default.
        """
        config = model.config
        self._model = model
        shape = (config.seq_len + 1, config.kv_dim)
        caches = [
            (
                model.operations.tensor(f"layer {layer} keys", shape),
                model.operations.tensor(f"layer {layer} values", shape),
            )
            for layer in range(config.layers)
        ]
        self._block = CachedRows(model, caches, min(PROMPT_ROWS, config.seq_len))
        self._single = CachedRows(model, caches, 1)
        self._ids = config.vocab_size if ids is None else ids

    def generate(self, prompt: Sequence[int], count: int, sampler: Sampler) -> Iterator[int]:
        """Yield `count` ids that follow `prompt`, each drawn by `sampler` from the model's logits.

        Raises:
            InputError: the prompt is empty or has an id beyond the vocabulary.
        """
        self._check(prompt)
        ids = list(prompt)
        length = self._model.config.seq_len
        done = 0  # ids whose keys and values are in the cache
        for _ in range(count):
            # The sequence is full: start again from its last half, whose positions change.
            if len(ids) > length:
                ids, done = ids[-max(1, length // 2) :], 0
            logits = self._take_in(ids, done)
            done = len(ids)
            ids.append(sampler.draw(logits))
            yield ids[-1]

    def _take_in(self, ids: list[int], done: int) -> NDArray[np.float32]:
        """Add all of `ids` but the first `done` to the cache; return the logits after them."""
        last = len(ids) - 1
        # The prompt in blocks; the last id alone, because only its logits are wanted.
        while done < last:
            block = ids[done : min(done + self._block.rows, last)]
            self._block.run(block, done)
            done += len(block)
        return self._single.logits_after(ids[last], last)[: self._ids]

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the logits of what follows `ids`: one for each id that stands for a token.

        Raises:
            InputError: there are no ids, more than `seq_len`, or some beyond the vocabulary.
        """
        self._check(ids)
        if len(ids) > self._model.config.seq_len:
            raise InputError(
                f"{len(ids)} ids are too many; the model takes {self._model.config.seq_len}"
            )
        return self._take_in(list(ids), 0)

    def _check(self, ids: Sequence[int]) -> None:
        if not ids:
            raise InputError("the prompt is empty; give at least one token")
        try:
            check_ids(ids, self._ids)
        except InputError as error:
            raise InputError(f"the prompt can't be used: {error}") from error
