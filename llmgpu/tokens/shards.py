"""Token shards: the ids of a text in ``bin`` files of equal length, listed by a manifest.

For the output ``OUT.bin``:

- ``OUT-000000.bin``, ``OUT-000001.bin`` and so on have exactly the requested number of tokens, the
  last shard has the remaining tokens. Each shard has a side file. Its entry "continues" tells that
  the first ids belong to the last document of the previous shard.
- ``OUT.json`` is the manifest, which exists only while all listed shards exist.
- ``OUT.progress.json`` has the resume key of a job and its finished shards. A resumed job encodes
  the text again from the start, and compares the ids with the finished shards.
- ``OUT.lock`` is locked while a job writes, see `llmgpu.files`, and removed at the end.
- At the end of a job, further shards of an earlier job with more shards, and temporary files of a
  killed job, are removed.

If a document starts at the border of two shards, the start belongs to the second shard.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from llmgpu.bpe.encoding.encoder import EncodedSlice
from llmgpu.bpe.encoding.special_options import NO_SPECIAL_TOKENS, SpecialOptions
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.closing import undoing
from llmgpu.cpu.texts import replaced_bytes
from llmgpu.errors import InputError
from llmgpu.file_kinds import MANIFEST, PROGRESS
from llmgpu.files import FileLock, output_errors
from llmgpu.outputs import Output, check_outputs
from llmgpu.resume_key import FILES, PART, Run, check_same_run
from llmgpu.tokens.bin import read_side_file
from llmgpu.tokens.filters import spans_without
from llmgpu.tokens.formats import Layout, get_layout, index_name, mask_path, open_writer, side_path
from llmgpu.tokens.manifest import (
    SUMS,
    Shard,
    add_progress,
    digest,
    is_whole,
    read_facts,
    read_progress,
    write_manifest,
    write_progress,
)
from llmgpu.tokens.sinks import TokenSink, id_dtype, require_ids

_NO_IDS = np.empty(0, np.uint32)


class ShardNames:
    """The names of all files that belong to an output.

    output: the path that the user gave, such as OUT.bin. manifest: path of the list of shards.
    progress: path of the list of finished shards, which an unfinished job has. lock: path of the
    lock file.
    """

    def __init__(self, output: str) -> None:
        self.output = output
        self._stem, self._suffix = os.path.splitext(output)
        self.manifest = f"{self._stem}.json"
        self.progress = f"{self._stem}.progress.json"
        self.lock = f"{self._stem}.lock"

    def shard(self, index: int) -> str:
        """Return the path of the shard with this number."""
        return f"{self._stem}-{index:06d}{self._suffix}"

    def _listed(self, expression: str) -> list[str]:
        """Return the paths beside the output whose file names match a regular expression, sorted.

        expression: {stem} and {suffix} stand for the stem and the suffix of the output's name.
        """
        folder, stem = os.path.split(self._stem)
        own = expression.format(stem=re.escape(stem), suffix=re.escape(self._suffix))
        names = (name for name in os.listdir(folder or ".") if re.fullmatch(own, name))
        return sorted(os.path.join(folder, name) for name in names)

    def outputs(self) -> list[Output]:
        """The files that a job may replace.

        Old shards are listed without a kind, because the new job may have fewer shards and leave
        some in place. `ShardWriter` checks the kind of each old shard just before it replaces the
        shard.
        """
        shards: list[str] = []
        with suppress(OSError):  # if the folder can't be read, writing will raise an error
            shards = self._listed(r"{stem}-\d{{6,}}{suffix}(\.json|\.mask\.npy)?")
        lists = [Output(self.manifest, MANIFEST), Output(self.progress, PROGRESS)]
        return [*lists, *(Output(path, None) for path in shards)]

    def remove_temporary(self) -> None:
        """Remove the temporary files that a killed job left."""
        own = r"{stem}(-\d{{6}}{suffix}(\.json|\.mask\.npy)?|(\.progress)?\.json)"
        for path in self._listed(rf"\.{own}\.[0-9a-f]{{{{12}}}}\.tmp"):
            _remove(path)


class ShardWriter(TokenSink):
    """Writes ids into shards.

    kept: number of shards that an interrupted job has finished. The ids of these shards are
    compared and not written again.
    """

    def __init__(
        self,
        output: str | Path,
        vocabulary: Vocabulary,
        shard_tokens: int,
        *,
        layout: str = "raw",
        special: SpecialOptions = NO_SPECIAL_TOKENS,
        masked: bool = False,
        run: Run | None = None,
        resume: bool = False,
        force: bool = False,
    ) -> None:
        """Prepare for shards of `shard_tokens` ids.

        layout: one of LAYOUTS. special: has the tokens around documents, which replace no bytes of
        the text. masked: whether slices have masks. run: resume key of the ids; `_job_key` makes
        the key of the shards. resume: continue a job with the same key. force: replace files of
        another kind.

        Raises InputError if the job to resume has another key (the message names the difference),
        for an unknown layout and for an invalid number of tokens; OutputError if a shard would
        replace another file, or another job writes these shards.
        """
        super().__init__()
        self._layout = get_layout(layout)
        most = self._layout.max_tokens
        if shard_tokens < 1:
            raise InputError(f"shards of {shard_tokens} tokens: use 1 or more")
        if most is not None and shard_tokens > most:
            what = f"shards of {shard_tokens} tokens"
            raise InputError(f"{what}: the limit of layout {layout} is {most}")
        self._names = ShardNames(str(output))
        self._vocabulary = vocabulary
        self._spans = spans_without(vocabulary, special)
        self._shard_tokens = shard_tokens
        self._run = _job_key(vocabulary, shard_tokens, layout, run)
        # Options of each shard's writer.
        self._options: dict[str, Any] = {"layout": layout, "masked": masked, "force": force}
        self._lock = FileLock(self._names.lock, self._names.output)
        with undoing(self._lock.remove):
            self._former = _read_progress(self._names, self._run) if resume else []
            check_outputs(self._names.outputs(), force=force)
        self.kept = len(self._former)
        self._shards: list[Shard] = []
        self._current: TokenSink | None = None
        self._continues = False
        # Number of documents that start at the next id, or at the end if no id follows.
        self._held = 0

    def prepare(self, piece: EncodedSlice) -> EncodedSlice:
        """Check ids, count their bytes of text and convert them; see `TokenSink.prepare`."""
        require_ids(piece.ids, self._vocabulary.size)
        numbers = np.ascontiguousarray(piece.ids, id_dtype(self._vocabulary.size))
        return replace(piece, content=(numbers, replaced_bytes(self._spans, piece.ids)))

    def _write(self, piece: EncodedSlice) -> None:
        """Write the next ids. Shards list the bytes of text that the ids replace.

        Raises InputError if ids differ from the ids of a finished shard.
        """
        ids, (numbers, nbytes) = piece.ids, piece.content
        starts = np.concatenate([np.zeros(self._held, np.int64), piece.document_starts])
        begin = low = 0
        # Cut the slice at the borders of shards. A document start at the end of the slice is held
        # until an id follows, because the id may belong to the next shard.
        while begin < len(ids):
            if self._current is not None and self._current.ids == self._shard_tokens:
                self._finish_shard()
            done = self._current.ids if self._current else 0
            end = min(len(ids), begin + self._shard_tokens - done)
            high = int(np.searchsorted(starts, end, side="left"))
            if end - begin < len(ids):
                nbytes = replaced_bytes(self._spans, ids[begin:end])
            mask = None if piece.mask is None else piece.mask[begin:end]
            part = EncodedSlice(ids[begin:end], starts[low:high] - begin, nbytes, mask=mask)
            self._put(replace(part, content=numbers[begin:end].data.cast("B")))
            begin, low = end, high
        self._held = len(starts) - low

    def close(self) -> None:
        """Finish the last shard, write the manifest and remove the progress and lock files."""
        with undoing(self.abort):
            if self._held or self._current is None:
                starts, mask = np.zeros(self._held, np.int64), np.zeros(0, np.bool_)
                self._put(EncodedSlice(_NO_IDS, starts, mask=mask, content=b""))
            self._finish_shard()
            _remove_from(self._names, len(self._shards))
            self._write_manifest()
        _remove(self._names.progress)
        self._names.remove_temporary()
        self._lock.remove()

    def abort(self) -> None:
        """Remove the unfinished shard; finished shards remain."""
        try:
            if self._current is not None:
                self._current.abort()
        finally:
            self._lock.remove()

    def _put(self, piece: EncodedSlice) -> None:
        """Write ids that fit into the current shard; `piece.content` has the bytes of the ids."""
        if self._current is None:
            index, starts = len(self._shards), piece.document_starts
            path, vocabulary = self._names.shard(index), self._vocabulary
            self._continues = index > 0 and not (len(starts) and starts[0] == 0)
            if index < self.kept:
                self._current = _KeptShard(path, vocabulary, self._layout)
            else:
                self._current = open_writer(
                    path, "bin", vocabulary, continues=self._continues, **self._options
                )
        self._current.write(piece)

    def _finish_shard(self) -> None:
        assert self._current is not None
        index, done = len(self._shards), self._current
        path = self._names.shard(index)
        sizes = done.ids, done.text_bytes, done.documents
        shard = Shard(os.path.basename(path), *sizes, self._continues)
        if index < self.kept and shard != self._former[index]:
            raise _differs(path)
        # The manifest, and if no shard is kept the progress file, may list shards that are now
        # replaced: remove them.
        if index == self.kept:
            _remove(self._names.manifest)
            if index == 0:
                _remove(self._names.progress)
        done.close()
        self._current = None
        self._shards.append(shard)
        # List the shard in the progress file only now that it is on disk.
        if index == self.kept:
            write_progress(self._names.progress, self._run, self._shards)
        elif index > self.kept:
            add_progress(self._names.progress, shard)

    def _write_manifest(self) -> None:
        facts = {
            "dtype": id_dtype(self._vocabulary.size).name,
            "byte_order": "little",
            "layout": self._layout.name,
            "offset": self._layout.header_bytes,
            "shard_tokens": self._shard_tokens,
            **dict.fromkeys(SUMS),
            "vocabulary_size": self._vocabulary.size,
            "fingerprint": self._vocabulary.fingerprint,
            **self._vocabulary.match_facts,
            "run_sha256": digest(self._run),
        }
        if PART in self._run:
            # Add the number of the part, and a digest that is the same for all parts.
            shared = {key: self._run[key] for key in self._run if key not in (FILES, PART)}
            facts |= {"part": self._run[PART], "work_sha256": digest(shared)}
        write_manifest(self._names.manifest, facts, self._shards)


def finished_job(
    output: str | Path, vocabulary: Vocabulary, shard_tokens: int, layout: str, run: Run
) -> dict[str, Any] | None:
    """Return the manifest of a finished job; None for an unfinished job.

    Takes the arguments of the job's `ShardWriter`.
    """
    names = ShardNames(str(output))
    if os.path.lexists(names.progress) or not os.path.exists(names.manifest):
        return None
    content, shards = read_facts(names.manifest)
    if content.get("run_sha256") != digest(_job_key(vocabulary, shard_tokens, layout, run)):
        return None
    whole = all(is_whole(names.shard(index), shard) for index, shard in enumerate(shards))
    return content if whole else None


def _job_key(vocabulary: Vocabulary, shard_tokens: int, layout: str, run: Run | None) -> Run:
    """Return the facts that must be equal when the writing of shards is resumed.

    run: resume key of the ids.
    """
    own: Run = {
        "shard tokens": shard_tokens,
        "layout": layout,
        "match": vocabulary.match,
        "vocabulary": vocabulary.fingerprint,
    }
    return own | (run or {})


class _KeptShard(TokenSink):
    """Compares ids with the ids of a finished shard."""

    def __init__(self, path: str, vocabulary: Vocabulary, layout: Layout) -> None:
        super().__init__()
        self._path = path
        self._dtype = id_dtype(vocabulary.size)
        self._offset = layout.header_bytes  # bytes before the numbers

    def _write(self, piece: EncodedSlice) -> None:
        offset = self._offset + self.ids * self._dtype.itemsize
        there = np.fromfile(self._path, self._dtype, len(piece.ids), offset=offset)
        if not np.array_equal(there, piece.ids):
            raise _differs(self._path)


def _differs(path: str) -> InputError:
    return InputError(
        f"{path} does not match the text: one of them has changed; remove the file to write it and "
        "those after it again"
    )


def _read_progress(names: ShardNames, run: Run) -> list[Shard]:
    """Return the finished shards up to the first shard that is missing or changed.

    Raises InputError if the progress file is damaged or belongs to another job.
    """
    path = names.progress
    if not os.path.lexists(path):
        return []
    content, shards = read_progress(path)
    check_same_run(f"{path} belongs to another run", content["run"], run)
    whole = 0
    while whole < len(shards) and is_whole(names.shard(whole), shards[whole]):
        whole += 1
    return shards[:whole]


def _remove_from(names: ShardNames, first: int) -> None:
    """Remove the shards of an earlier job, from number `first` on."""
    surplus: list[tuple[str, Layout]] = []
    try:
        while True:
            path = names.shard(first + len(surplus))
            surplus.append((path, get_layout(read_side_file(path)["layout"])))
    except InputError as error:
        if not isinstance(error.__cause__, (FileNotFoundError, type(None))):
            raise  # e.g. permission denied: the shard may exist
    # Begin with the last shard, so that a kill leaves no gap in the numbers.
    for path, layout in reversed(surplus):
        of_index = [index_name(path)] if layout.has_index else []
        for name in (path, mask_path(path), side_path(path), *of_index):
            _remove(name)


def _remove(path: str) -> None:
    with output_errors(path):
        Path(path).unlink(missing_ok=True)
