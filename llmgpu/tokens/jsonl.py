"""Token ids as JSON lines: ``{"ids": [1,2]}``, one line per document."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from llmgpu.errors import InputError
from llmgpu.text.jsonl import jsonl_lines, parse_json_object
from llmgpu.tokens.ids import TextWriter
from llmgpu.tokens.sinks import MAX_ID, not_an_id, open_stream, with_buffer

DESCRIPTION = "JSON lines"

_BLOCK_IDS = 1 << 18


class JsonlWriter(TextWriter):
    """Writes ids as JSON lines."""

    SEPARATOR, BEFORE, AFTER = b",", b'{"ids": [', b"]}\n"


open_writer = JsonlWriter


def read(name: str, vocabulary_size: int | None, layout: str) -> Iterator[NDArray[np.int64]]:
    """Yield the ids of a file in blocks; those of a pipe as they arrive."""
    with open_stream(name) as stream:
        pending: list[int] = []  # of short lines, unless the next one must be waited for
        for number, line in jsonl_lines(with_buffer(stream), name):
            pending += _line_ids(line, f"{name}, line {number}")
            if len(pending) >= _BLOCK_IDS or not stream.wait(0):
                for begin in range(0, len(pending), _BLOCK_IDS):
                    yield np.array(pending[begin : begin + _BLOCK_IDS], np.int64)
                pending = []
        if pending:
            yield np.array(pending, np.int64)


def _line_ids(line: bytes, where: str) -> list[int]:
    ids = parse_json_object(line, where).get("ids")
    if not isinstance(ids, list):
        raise InputError(f'{where}: no list of ids: a line is {{"ids": [1, 2, ...]}}')
    if set(map(type, ids)) - {int} or (ids and not 0 <= min(ids) <= max(ids) <= MAX_ID):
        bad = next(i for i in ids if type(i) is not int or not 0 <= i <= MAX_ID)
        raise not_an_id(where, json.dumps(bad)[:40])
    return ids
