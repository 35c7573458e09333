"""Tokenizers of transformers whose encoding and decoding run in llmgpu, with the same results.

"The library" is the package tokenizers, in which transformers' fast tokenizers encode. `wrap`
returns a copy of a tokenizer whose class is a subclass of the tokenizer's class. The subclass
overrides the few methods through which all of transformers' calls encode and decode. transformers'
own code handles the calls that llmgpu can't do exactly: pairs of texts, texts that are split into
words, offsets, and overflowing tokens.

Any code that has a reference to the library's tokenizer, `_tokenizer`, can change this tokenizer.
The methods of `_READERS` read `_tokenizer` without changing a component. Once other code has read
`_tokenizer`, `WatchedBackend` compares the tokenizer's components before each call.

A BatchEncoding has an `Encoding` of the library for each text, which few callers use. The library
makes these objects only when a caller first reads them.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from types import GetSetDescriptorType
from typing import Any

import numpy as np

from llmgpu.bpe.interchange.token_tables import require_package
from llmgpu.errors import VocabularyError
from llmgpu.tokenizer.exact_backend import Around, ExactBackend

MAJOR = 5  # major version of transformers


def _require_transformers() -> Any:
    library = require_package("transformers")
    if int(library.__version__.partition(".")[0]) != MAJOR:
        raise VocabularyError(
            f"as_transformers takes tokenizers of transformers {MAJOR}, but {library.__version__} "
            f'is installed: pip install "transformers>={MAJOR},<{MAJOR + 1}"'
        )
    return library


transformers = _require_transformers()
TokenizersBackend: Any = transformers.TokenizersBackend
BatchEncoding: Any = transformers.BatchEncoding

# `_local.depth` is the number of running calls of `_read` in this thread
_local = threading.local()
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def _describe(library: Any) -> tuple[object, ...]:
    """Return facts about a `tokenizers.Tokenizer`: tokenizers with equal facts give equal ids."""
    parts, model = [getattr(library, name) for name in _PARTS], library.model
    own = vars(type(model)).items()
    return (
        [library.get_vocab_size(with_added_tokens=adds) for adds in (False, True)],
        repr(sorted(library.get_added_tokens_decoder().items())),
        [part and part.__getstate__() for part in parts],
        type(model).__name__,
        [getattr(model, name) for name, each in own if isinstance(each, GetSetDescriptorType)],
    )


class WatchedBackend:
    """A `tokenizers.Tokenizer`, and the `ExactBackend` made from its current state.

    is_shared: whether other code may have a reference to the `tokenizers.Tokenizer`, and may change
    it. reason: why no ExactBackend can be made.
    """

    def __init__(self, library: Any, is_shared: bool) -> None:
        self.library, self.is_shared, self.reason = library, is_shared, ""
        self._made: tuple[object, ExactBackend | None] = None, None

    def exact(self) -> ExactBackend | None:
        """Return the ExactBackend for the current state of `library`; None if it can't be made."""
        described, exact = self._made
        if described is not None and not self.is_shared:
            return exact
        try:
            described = _describe(self.library)
            if described == self._made[0]:
                return exact
            exact = ExactBackend(self.library)
        except Exception as error:
            # The package tokenizers raises plain exceptions for components that are written in
            # Python.
            exact, self.reason = None, str(error)
        self._made = described, exact
        return exact

    def __deepcopy__(self, memo: dict[int, Any]) -> WatchedBackend:
        made = WatchedBackend(copy.deepcopy(self.library, memo), self.is_shared)
        made._made = self._made
        return made

    def encodings(
        self, exact: ExactBackend, texts: Sequence[str], settings: tuple[Any, ...]
    ) -> list[Any]:
        """Return a `tokenizers.Encoding` for each text.

        exact: the backend that encoded the texts. settings: truncation, padding, whether special
        tokens are text, and whether they are added.
        """
        library = self.library
        if self.exact() is not exact:  # the tokenizer has changed since it encoded the texts
            library = require_package("tokenizers").Tokenizer.from_str(exact.text)
        before = _settings(library)
        _set(library, *settings[:3])
        try:
            found: list[Any] = library.encode_batch(texts, add_special_tokens=settings[3])
        finally:
            _set(library, *before)
        return found


def _settings(library: Any) -> tuple[Any, ...]:
    return library.truncation, library.padding, library.encode_special_tokens


def _set(library: Any, truncation: Any, padding: Any, special_is_text: bool) -> None:
    library.no_truncation() if truncation is None else library.enable_truncation(**truncation)
    library.no_padding() if padding is None else library.enable_padding(**padding)
    library.encode_special_tokens = special_is_text


class _Batch(BatchEncoding):  # type: ignore[misc]
    """A BatchEncoding that makes its `Encoding` objects when a caller first reads them."""

    @property
    def _encodings(self) -> Any:
        make = self.__dict__.pop("_make", None)
        if make is not None:
            self.__dict__["_made"] = make()
        return self.__dict__.get("_made")

    @_encodings.setter
    def _encodings(self, encodings: Any) -> None:
        self.__dict__["_made"] = encodings

    @property
    def is_fast(self) -> bool:
        """Whether callers can read `Encoding` objects, even if they are not made yet."""
        return "_make" in self.__dict__ or self.__dict__.get("_made") is not None

    def __reduce__(self) -> Any:
        return BatchEncoding, (self.data, self._encodings)


@dataclass
class _Request:
    """The arguments of ``_encode_plus`` for single texts, with the same names and defaults."""

    add_special_tokens: bool = True
    padding_strategy: Any = "do_not_pad"
    truncation_strategy: Any = "do_not_truncate"
    max_length: int | None = None
    stride: int = 0
    pad_to_multiple_of: int | None = None
    padding_side: str | None = None
    is_split_into_words: bool = False
    return_tensors: Any = None
    return_token_type_ids: bool | None = None
    return_attention_mask: bool | None = None
    return_overflowing_tokens: bool = False
    return_special_tokens_mask: bool = False
    return_offsets_mapping: bool = False
    return_length: bool = False
    verbose: bool = True
    split_special_tokens: bool | None = None
    sanitize_control_tokens: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether llmgpu supports all requested arguments."""
        others = self.is_split_into_words or self.return_overflowing_tokens or self.stride
        others = others or self.return_offsets_mapping or self.sanitize_control_tokens
        return not others and _value(self.truncation_strategy) != "only_second"

    @property
    def changes(self) -> bool:
        """Whether texts are truncated or padded."""
        cut, pad = _value(self.truncation_strategy), _value(self.padding_strategy)
        return (cut, pad) != ("do_not_truncate", "do_not_pad")

    def settings(self) -> dict[str, Any]:
        """Return the arguments of ``set_truncation_and_padding``."""
        return {name: getattr(self, name) for name in _SETTINGS}

    def room(self, around: Around) -> int | None:
        """Return the number of ids to which texts are truncated, without the ids around a text.

        Returns None if texts are not truncated.
        """
        if _value(self.truncation_strategy) == "do_not_truncate":
            return None
        return (self.max_length or 0) - len(around.before) - len(around.after)

    def padded(self, longest: int) -> int | None:
        """Return the length to which rows are padded; None without padding.

        longest: length of the longest row.
        """
        pad, multiple = _value(self.padding_strategy), self.pad_to_multiple_of
        if pad == "do_not_pad":
            return None
        length = longest if pad == "longest" else self.max_length or 0
        return -(-length // multiple) * multiple if multiple else length


_FIELDS = [each.name for each in fields(_Request)]
_SETTINGS = _FIELDS[1:7]  # the arguments of `set_truncation_and_padding`


class _Rows:
    """The rows of a batch: the ids of texts with the ids around them, padded.

    lengths: length of each row. length: the length to which rows are padded; None without padding.
    """

    def __init__(self, texts: Sequence[Any], around: Around, is_left: bool) -> None:
        self._texts, self._around, self._is_left = texts, around, is_left
        self._more = len(around.before) + len(around.after)
        self.lengths = [len(ids) + self._more for ids in texts]
        self.length: int | None = None

    def values(self, kind: str, pad: int) -> list[list[int]]:
        """Return the rows as lists; kind: "ids", "types", "attention" or "special".

        pad: the value that fills a row.
        """
        lists = [ids if type(ids) is list else ids.tolist() for ids in self._texts]
        return [self._row(kind, ids, pad) for ids in lists]

    def _row(self, kind: str, ids: Any, pad: int) -> list[int]:
        before, text, after = self._parts(kind, ids)
        row: list[int] = [*before, *text, *after] if before or after else text
        missing = max(0, (self.length or 0) - len(row))
        if missing:
            row = [pad] * missing + row if self._is_left else row + [pad] * missing
        return row

    def _parts(self, kind: str, ids: Any) -> tuple[Any, Any, Any]:
        around = self._around
        if kind == "ids":
            return around.before, ids, around.after
        if kind == "types":
            before, of_text, after = around.types
            return before, [of_text] * len(ids), after
        special = int(kind == "special")
        return [1] * len(around.before), [1 - special] * len(ids), [1] * len(around.after)

    def matrix(self, kind: str, pad: int) -> Any:
        """Return the rows as an array, int64 (texts, length). All rows must be equally long."""
        width = self.lengths[0]
        made = np.full((len(self._texts), width), pad, np.int64)
        for row, ids in zip(made, self._texts, strict=True):
            begin = width - len(ids) - self._more if self._is_left else 0
            for part in self._parts(kind, ids):
                row[begin : begin + len(part)] = part
                begin += len(part)
        return made


class FastTokenizer:
    """A mixin with the methods that run in llmgpu, placed before a class of transformers."""

    _base: type

    @property
    def _tokenizer(self) -> Any:
        """The `tokenizers.Tokenizer` of this tokenizer.

        Code outside of `_read` may keep the object and change it later. So reading this property
        outside of `_read` marks the tokenizer as shared.
        """
        watched = self.__dict__.get("_watched")
        if watched is None:
            return None
        if not getattr(_local, "depth", 0):
            watched.is_shared = True
        return watched.library

    @_tokenizer.setter
    def _tokenizer(self, library: Any) -> None:
        self.__dict__["_watched"] = WatchedBackend(library, is_shared=True)

    def __reduce__(self) -> Any:
        return _restore, (self._base, self.__dict__)

    @classmethod
    def convert_to_native_format(cls, *args: Any, **named: Any) -> Any:
        """Call the method on the base class, because it checks if its class defines `__init__`."""
        return cls._base.convert_to_native_format(*args, **named)  # type: ignore[attr-defined]

    def _encode_plus(self, text: Any, text_pair: Any = None, *args: Any, **options: Any) -> Any:
        batch = None
        if text_pair is None and not args and options.keys() <= {*_FIELDS}:
            batch = self._encode_here(text, _Request(**options))
        if batch is None:
            batch = _read(self, "_encode_plus", text, text_pair, *args, **options)
        return batch

    def _encode_here(self: Any, text: Any, request: _Request) -> Any:
        """Return a BatchEncoding; None if only transformers can make it exactly."""
        # Return None for a request that llmgpu can't do exactly.
        is_single = isinstance(text, str)
        texts = [text] if is_single else [*text] if isinstance(text, (list, tuple)) else []
        exact = self._watched.exact()
        are_texts = texts and all(isinstance(text, str) for text in texts)
        if exact is None or not request.is_plain or not are_texts:
            return None
        around = exact.around[bool(request.add_special_tokens)]
        room = request.room(around)
        if room is not None and room <= 0:
            return None
        # Encode the texts.
        special_is_text = request.split_special_tokens
        if special_is_text is None:
            special_is_text = self.split_special_tokens
        kind = _value(request.return_tensors)
        ids = exact.encode(texts, bool(special_is_text), as_lists=kind not in ("np", "pt"))
        if ids is None:
            return None
        # Store the settings of this call in the `tokenizers.Tokenizer`, as transformers does.
        library = self._watched.library
        if request.changes or library.truncation or library.padding:
            self.set_truncation_and_padding(**request.settings())
        library.encode_special_tokens = special_is_text
        # Truncate and pad the rows.
        if room is not None:
            is_right = self.truncation_side == "right"
            ids = [each[:room] if is_right else each[-room:] for each in ids]
        side = request.padding_side or self.padding_side
        rows = _Rows(ids, around, is_left=side == "left")
        rows.length = request.padded(max(rows.lengths))
        rows.lengths = [max(length, rows.length or 0) for length in rows.lengths]
        for length in rows.lengths:
            if request.max_length is None and length > self.model_max_length:
                self._eventual_warn_about_too_long_sequence(range(length), None, request.verbose)
        # Make the BatchEncoding. For a single text, a value is one list and not a list of rows,
        # unless tensors are requested.
        data = self._columns(rows, kind, request)
        if is_single and kind is None:
            data = {name: value if name == "length" else value[0] for name, value in data.items()}
        batch = _Batch(data, None, request.return_tensors, n_sequences=1)
        settings = (*_settings(library), request.add_special_tokens)
        watched = self._watched
        batch.__dict__["_make"] = lambda: watched.encodings(exact, texts, settings)
        return batch

    def _columns(self: Any, rows: _Rows, kind: str | None, request: _Request) -> dict[str, Any]:
        """Return the values of a BatchEncoding by name.

        kind: "np" or "pt" for arrays or tensors, another kind of tensors, or None for lists.
        """
        has_types, has_mask = request.return_token_type_ids, request.return_attention_mask
        if has_types is None:
            has_types = "token_type_ids" in self.model_input_names
        if has_mask is None:
            has_mask = "attention_mask" in self.model_input_names
        make: Callable[[str, int], Any] = rows.values
        if kind in ("np", "pt") and len({*rows.lengths}) == 1 and rows.lengths[0]:
            make = rows.matrix
        pads = rows.length is not None
        data = {"input_ids": make("ids", self.pad_token_id if pads else 0)}
        if has_types:
            data["token_type_ids"] = make("types", self.pad_token_type_id if pads else 0)
        if has_mask:
            data["attention_mask"] = make("attention", 0)
        if request.return_special_tokens_mask:
            data["special_tokens_mask"] = make("special", 1)
        if kind == "pt" and make == rows.matrix:
            torch = require_package("torch")
            data = {name: torch.from_numpy(value) for name, value in data.items()}
        if request.return_length:
            data["length"] = rows.lengths
        return data

    def tokenize(
        self, text: Any, pair: Any = None, add_special_tokens: bool = False, **named: Any
    ) -> list[str]:
        """Return the tokens of a text."""
        named |= {"text_pair": pair, "add_special_tokens": add_special_tokens}
        found: list[str] = _read(self, "_encode_plus", text, **named).tokens()
        return found

    def decode(self: Any, token_ids: Any, skip_special_tokens: bool = False, **named: Any) -> Any:
        """Return the text of ids, or the texts of lists of ids."""
        if type(token_ids) is list:
            cleans = named.get("clean_up_tokenization_spaces")
            is_batch = bool(token_ids) and type(token_ids[0]) is list
            batch = token_ids if is_batch else [token_ids]
            texts = [self._text_of(ids, skip_special_tokens, cleans) for ids in batch]
            if None not in texts:
                return texts if is_batch else texts[0]
        return super().decode(token_ids, skip_special_tokens, **named)  # type: ignore[misc]

    def _decode(
        self: Any,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        **named: Any,
    ) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        text = self._text_of(ids, skip_special_tokens, clean_up_tokenization_spaces)
        if text is None:
            named["clean_up_tokenization_spaces"] = clean_up_tokenization_spaces
            text = _read(self, "_decode", token_ids, skip_special_tokens, **named)
        return str(text)

    def _text_of(self: Any, ids: Any, skips: bool, cleans: bool | None) -> str | None:
        """Return the text of ids; None if only transformers can decode them."""
        cleans = self.clean_up_tokenization_spaces if cleans is None else cleans
        ignored = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
        exact = self._watched.exact()
        if exact is None or type(ids) is not list or (cleans and getattr(self, ignored, True)):
            return None
        text: str | None = exact.decode(ids, bool(skips))
        if text is not None and cleans:
            # Let transformers warn, once, that it does not clean up the text of a BPE model.
            _read(self, "_decode", [], clean_up_tokenization_spaces=True)
        return text

    def convert_ids_to_tokens(self: Any, ids: Any, skip_special_tokens: bool = False) -> Any:
        """Return the token of an id, or the tokens of several ids."""
        exact = self._watched.exact()
        try:
            if exact is not None and isinstance(ids, int):
                return exact.tokens[ids]
            if exact is not None:
                skipped = {*self.all_special_ids} if skip_special_tokens else ()
                numbers = map(int, ids)
                return [exact.tokens[number] for number in numbers if number not in skipped]
        except KeyError:
            pass
        return _read(self, "convert_ids_to_tokens", ids, skip_special_tokens)


def _value(setting: Any) -> Any:
    """Return the value of an enumeration's member; any other argument is returned unchanged."""
    return getattr(setting, "value", setting)


def _read(tokenizer: FastTokenizer, name: str, *args: Any, **named: Any) -> Any:
    """Return an attribute of the base class; if the attribute is a method, call the method.

    The method must not change components of `_tokenizer`, because reads by `_read` do not mark the
    tokenizer as shared.
    """
    _local.depth = getattr(_local, "depth", 0) + 1
    try:
        found = getattr(super(FastTokenizer, tokenizer), name)
        return found(*args, **named) if callable(found) else found
    finally:
        _local.depth -= 1


_READERS = (
    "__len__",
    "get_vocab",
    "num_special_tokens_to_add",
    "set_truncation_and_padding",
    "save_pretrained",
    "convert_tokens_to_string",
    "_convert_token_to_id_with_added_voc",
    "_convert_id_to_token",
    "_encode_without_added_tokens",
    "vocab_size",
    "added_tokens_decoder",
)


def _reader(name: str) -> Any:
    def read(self: Any, *args: Any, **named: Any) -> Any:
        return _read(self, name, *args, **named)

    return property(read) if isinstance(getattr(TokenizersBackend, name), property) else read


for _name in _READERS:
    setattr(FastTokenizer, _name, _reader(_name))


@cache
def _class_of(base: type) -> Any:
    """Return a subclass of `base`, a class of transformers. Methods of the subclass run in llmgpu.

    The subclass has the name of `base`, because `save_pretrained` writes the name.
    """
    named = {"__module__": base.__module__, "__qualname__": base.__qualname__, "_base": base}
    own = {
        name: getattr(base, name)
        for name in ("decode", "convert_ids_to_tokens")
        if getattr(base, name) is not getattr(TokenizersBackend, name)
    }
    return type(base.__name__, (FastTokenizer, base), {**own, **named, "__doc__": base.__doc__})


def _restore(base: type, state: dict[str, Any]) -> Any:
    made = _class_of(base).__new__(_class_of(base))
    made.__dict__.update(state)
    return made


def wrap(tokenizer: Any) -> Any:
    """Return a copy of a fast tokenizer of transformers that encodes and decodes in llmgpu.

    Raises VocabularyError if llmgpu can't give the tokenizer's ids exactly; TypeError for any other
    object.
    """
    if isinstance(tokenizer, FastTokenizer):
        return copy.deepcopy(tokenizer)
    base = type(tokenizer)
    if not isinstance(tokenizer, TokenizersBackend):
        if isinstance(tokenizer, transformers.PreTrainedTokenizerBase):
            raise VocabularyError(f"{base.__name__} is not a fast tokenizer: its code is Python")
        raise TypeError(f"as_transformers takes a tokenizer of transformers, not {base.__name__}")
    for name in ("_encode_plus", "_convert_encoding", "_decode"):
        if getattr(base, name) is not getattr(TokenizersBackend, name):
            raise VocabularyError(f"{base.__name__} has its own {name}, which llmgpu lacks")
    state = copy.deepcopy(vars(tokenizer))
    watched = WatchedBackend(state.pop("_tokenizer"), is_shared=False)
    if watched.exact() is None:
        raise VocabularyError(f"this {base.__name__} can't be had exactly: {watched.reason}")
    return _restore(base, state | {"_watched": watched})
