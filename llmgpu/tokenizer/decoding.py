"""Methods of a tokenizer that need only its vocabulary: decoding, tokens by name, files.

Modules that need NumPy are imported inside methods, as in `llmgpu.tokenizer.tokenizer`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import BuiltinMethodType
from typing import TYPE_CHECKING, Any

from llmgpu.bpe.interchange.formats import ALIASES, END_OF_TEXT, WRITERS
from llmgpu.errors import VocabularyError
from llmgpu.forking import cached_property
from llmgpu.input_files import require_known
from llmgpu.spelling import speaks_python
from llmgpu.tokenizer.arguments import TokenIds, to_bytes, without

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from llmgpu.bpe.vocabulary.vocabulary import Vocabulary

_log = logging.getLogger("llmgpu")
# Error handlers that the extension module supports in streams. Python handles all others.
_HANDLERS = ("replace", "strict", "ignore", "backslashreplace", "surrogateescape", "surrogatepass")


@speaks_python
class Decoder:
    """The base class of `Tokenizer`; the subclass sets `_vocabulary`."""

    _vocabulary: Vocabulary
    _coder: Any = None  # the extension module's object for fast calls; None until it is made
    _is_prepared = False  # whether `_coder` encodes, if it can for the vocabulary

    def decode(
        self, ids: ArrayLike, errors: str = "replace", *, skip_special_tokens: bool = False
    ) -> str:
        """Return the text of `ids` (n,), any integers.

        errors: what to do with bytes that are not UTF-8, as in `bytes.decode`.
        skip_special_tokens: leave out the ids of `special_tokens`.

        Raises InputError for ids that are not in the vocabulary.
        """
        if skip_special_tokens:
            ids = without(ids, self._vocabulary.special_tokens.values())
        return self.decode_bytes(ids).decode(errors=errors)

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """Return the bytes of `ids` (n,), any integers; InputError for unknown ids.

        A space that a vocabulary of SentencePiece's kind adds before a text is left out.
        """
        if self._coder is None:
            self._open_coder(encodes=False)
        return self._vocabulary.decode_document(ids)

    def decode_batch(
        self,
        batch: Iterable[ArrayLike],
        errors: str = "replace",
        *,
        skip_special_tokens: bool = False,
    ) -> list[str]:
        """Return the text of each list of ids, as `decode` does."""
        coder = self._coder or self._open_coder(encodes=False)
        # Decode row by row if a subclass overrides `decode` or `decode_bytes`, and for an iterator,
        # which might yield one array again and again with other ids.
        kinds = {type(method) for method in (self.decode, self.decode_bytes)}
        is_usual = isinstance(batch, (list, tuple)) and kinds == {BuiltinMethodType}
        if skip_special_tokens or coder is None or not is_usual:
            skips = skip_special_tokens
            return [self.decode(ids, errors, skip_special_tokens=skips) for ids in batch]
        rows = [*batch]
        texts: list[str | None] = coder.decode_batch(rows, errors)
        return [
            self.decode(row, errors) if text is None else text
            for text, row in zip(texts, rows, strict=True)
        ]

    def decode_stream(self, ids: Iterable[int], errors: str = "replace") -> Iterator[str]:
        """Yield the text that each id completes, "" while a character is incomplete.

        Bytes of an incomplete character at the end are yielded last, as `errors` says.
        """
        coder = self._coder or self._open_coder(encodes=False)
        vocabulary = self._vocabulary
        if coder is not None and vocabulary.pieces is None and errors in _HANDLERS:
            texts: Iterator[str] = coder.stream(ids, errors, lambda each: vocabulary.decode([each]))
            return texts
        from llmgpu.bpe.vocabulary.spelling import decode_stream

        return decode_stream(vocabulary, ids, errors)

    def decode_with_offsets(self, ids: ArrayLike) -> tuple[str, NDArray[np.int64]]:
        """Return the text of `ids` (n,), and the character offsets of each id, int64 (n, 2).

        A row has the index of a token's first character, and the index after its last character;
        see `encode_with_offsets`.

        Raises InputError for unknown ids and for ids whose bytes are not UTF-8.
        """
        from llmgpu.bpe.vocabulary.spelling import decode_with_spans

        return decode_with_spans(self._vocabulary, ids)

    def decode_single_token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of an id; InputError if it is unknown."""
        return self._vocabulary.decode([token_id])

    def token_to_id(self, token: str | bytes) -> int | None:
        """Return the id of a token, given by its text or bytes; None if there is no such token.

        A str is looked up among the special tokens first; of several ordinary tokens with the same
        bytes, the lowest id is returned.
        """
        if isinstance(token, str) and token in self._vocabulary.special_tokens:
            return self._vocabulary.special_tokens[token]
        return self._ids.get(to_bytes(token))

    def id_to_token(self, token_id: int) -> str | None:
        """Return the text of an id, None if there is no such id."""
        known = 0 <= token_id < self.vocab_size
        return self.decode_single_token_bytes(token_id).decode(errors="replace") if known else None

    def __contains__(self, token: str | bytes) -> bool:
        """Whether there is such a token; see `token_to_id`."""
        return self.token_to_id(token) is not None

    def __getitem__(self, token: str | bytes) -> int:
        """Return the id of a token as `token_to_id` does; KeyError if there is no such token."""
        number = self.token_to_id(token)
        if number is None:
            raise KeyError(token)
        return number

    __iter__ = None  # without this, iterating would look up 0, 1, and so on

    def get_vocab(self) -> dict[str, int]:
        """Return the ids of all tokens by their text, as transformers does.

        Ordinary tokens are written in GPT-2's byte-level alphabet ("Ġlow" for " low"), special
        tokens with their own text. If two tokens have the same text, the result has the special
        token, or else the lower id. Looking up bytes raises TypeError: use `get_vocab_bytes`.
        """
        from llmgpu.bpe.interchange.token_tables import to_text

        ordinary = {to_text(token): number for token, number in self._ids.items()}
        return TokenIds(ordinary | self._vocabulary.special_tokens)

    def get_vocab_bytes(self) -> dict[bytes, int]:
        """Return the ids of ordinary tokens by their bytes. `special_tokens` has the other ids."""
        return dict(self._ids)

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        from llmgpu.bpe.vocabulary.building import ordinary_ranks

        return ordinary_ranks(self._vocabulary)

    def export(self, format: str, path: str | Path, *, force: bool = False) -> None:
        """Write files of another tool, as ``llmgpu export --to`` does.

        format: a format of ``llmgpu export --help``, such as "huggingface". force: replace files of
            another kind.

        Raises VocabularyError for an unknown format, or if the format can't give the same ids;
        OutputError for files that can't be written.
        """
        format = ALIASES.get(format, format)
        require_known("format", format, WRITERS, VocabularyError)
        WRITERS[format].write(self._vocabulary, path, note=_log.info, force=force)

    def as_tiktoken(self, name: str = "llmgpu", *, fast: bool = False) -> Any:
        """Return a `tiktoken.Encoding` with the same ids, for code that expects one.

        fast: return a subclass that encodes in llmgpu, with tiktoken's results and errors. The
        subclass's method `encode_with_unstable` raises InputError.

        Raises VocabularyError if ranks can't give the same ids, or tiktoken is not installed.
        """
        if fast:
            from llmgpu.tokenizer.fast_tiktoken import as_fast_tiktoken

            return as_fast_tiktoken(self, name)
        from llmgpu.bpe.interchange.tiktoken import to_tiktoken

        return to_tiktoken(self._vocabulary, name)

    def as_hf(self) -> Any:
        """Return a `transformers.PreTrainedTokenizerFast` with the same ids.

        Raises VocabularyError if a tokenizer.json can't give the same ids, or transformers is not
        installed.
        """
        from llmgpu.bpe.interchange.huggingface import to_transformers

        return to_transformers(self._vocabulary)

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the vocabulary file atomically.

        force: replace even a file of another kind, such as a text.

        Raises OutputError if the file can't be written.
        """
        self._vocabulary.save(path, force=force)

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary."""
        return self._vocabulary

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return self._vocabulary.size

    n_vocab = vocab_size  # tiktoken's name

    @property
    def eot_token(self) -> int | None:
        """Id of the special token ``<|endoftext|>``, None if there is none."""
        return self._vocabulary.special_tokens.get(END_OF_TEXT)

    @property
    def match(self) -> str:
        """How words become tokens: "bpe" (merges in order) or "greedy" (longest token first)."""
        return self._vocabulary.match

    @property
    def special_tokens(self) -> dict[str, int]:
        """A copy of the ids of the special tokens, by text."""
        return dict(self._vocabulary.special_tokens)

    def __len__(self) -> int:
        return self._vocabulary.size

    def _open_coder(self, *, encodes: bool) -> Any:
        """Return the extension module's coder for single calls; None without the module.

        encodes: whether the coder must be able to encode; otherwise it may only decode.
        """
        raise NotImplementedError
