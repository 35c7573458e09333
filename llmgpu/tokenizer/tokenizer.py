"""The tokenizer: a vocabulary, and the device for encoding.

Modules that need NumPy are imported inside methods, while a device is being opened.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
from itertools import pairwise
from operator import index
from pathlib import Path
from types import BuiltinMethodType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias, Unpack, overload

from llmgpu.backend import Opening, opening_device
from llmgpu.bpe.encoding.special_options import NO_SPECIAL_TOKENS
from llmgpu.bpe.interchange.formats import VocabularyFiles
from llmgpu.bpe.pretokens.names import DEFAULT_PATTERN
from llmgpu.errors import InputError
from llmgpu.forking import cached_property
from llmgpu.spelling import Named, is_other_name, speaks_python
from llmgpu.tokenizer.arguments import (
    SpecialArguments,
    Token,
    as_asked,
    holds,
    names_of,
    several,
    shortened,
    special_options,
    to_bytes,
)
from llmgpu.tokenizer.decoding import Decoder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor
    from torch import dtype as torch_dtype
    from typing_extensions import TypeVar

    from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
    from llmgpu.text.corpus import CorpusOptions
    from llmgpu.tokenizer.encoders import ChatEncoder, Message, ProcessEncoders

    Ids = TypeVar("Ids", bound=Sized, default=NDArray[np.uint32])
    Integer = TypeVar("Integer", bound=np.integer[Any], default=np.integer[Any])
    Width = Literal["np", "uint16", "uint32", "uint64", "int16", "int32", "int64"]
    ListType = type[list[Any]]
    NumPyType = type[Integer] | np.dtype[Integer] | Width
    TorchType: TypeAlias = Literal["pt"] | torch_dtype
    Texts = Iterable[str | bytes]
else:
    from typing import TypeVar

    Ids = TypeVar("Ids")

_log = logging.getLogger("llmgpu")
SHARED_FROM = 1 << 17  # shortest text, in characters, that is encoded in the memory of its str
_MOST_SHOWN = 120  # largest number of characters in a repr; up to 40 of them name the device


@speaks_python
class Tokenizer(Decoder, Generic[Ids], metaclass=Named):
    """A vocabulary, and the device for encoding.

    - The type parameter is the type of the ids that `encode` returns without ``dtype``.
    - Ids are the same as those of ``llmgpu tokenize``, on every device.
    - Threads may share a tokenizer. They encode side by side on the CPU, and one at a time on a
      device.
    - A pickle contains the vocabulary and the name of the device; the device is opened again when
      needed. A process that was forked from a process with an open adapter can't use adapters:
      "auto" means the CPU there, and any adapter raises DeviceError. Spawned processes have no such
      limit.
    - Texts of up to 64 KiB are always encoded on the CPU, because this is faster.
    """

    def __init__(
        self, vocabulary: Vocabulary, device: str | Opening = "auto", *, dtype: Any = None
    ) -> None:
        """Use a vocabulary in memory; `load` reads one from a file.

        device: a value of --device, or an `Opening`. With "auto", a device is opened only when it
            is needed; any other device is opened at once.
        dtype: the type of the ids that `encode`, `encode_ordinary`, `encode_batch` and calls
            return; see `encode`.

        Raises DeviceError if there is no such device, TypeError for a type without integers.
        """
        from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
        from llmgpu.cpu.extension import bind_methods
        from llmgpu.tokenizer.encoders import ProcessEncoders

        if not isinstance(vocabulary, Vocabulary):
            raise TypeError("Tokenizer() takes a Vocabulary; use Tokenizer.load to open a file")
        opening = device if isinstance(device, Opening) else Opening(device, encodes=True)
        self._vocabulary, self._device, self._dtype = vocabulary, opening.wanted, dtype
        holds(dtype, 0)  # TypeError for a type without integers
        self._encoders = ProcessEncoders(vocabulary, opening)
        self._encoders.open()
        # Bind the methods before a caller can keep a bound method of the first tokenizer.
        bind_methods(_IN_PYTHON)

    @overload
    @classmethod
    def load(
        cls, path: str | Path, device: str = "auto", *, match: str | None = None, dtype: None = None
    ) -> Tokenizer: ...

    @overload
    @classmethod
    def load(
        cls, path: str | Path, device: str = "auto", *, match: str | None = None, dtype: ListType
    ) -> Tokenizer[list[int]]: ...

    @overload
    @classmethod
    def load(
        cls,
        path: str | Path,
        device: str = "auto",
        *,
        match: str | None = None,
        dtype: NumPyType[Integer],
    ) -> Tokenizer[NDArray[Integer]]: ...

    @overload
    @classmethod
    def load(
        cls, path: str | Path, device: str = "auto", *, match: str | None = None, dtype: TorchType
    ) -> Tokenizer[Tensor]: ...

    @classmethod
    def load(
        cls, path: str | Path, device: str = "auto", *, match: str | None = None, dtype: Any = None
    ) -> Tokenizer[Any]:
        """Read a vocabulary.

        path: a vocabulary file, a tokenizer.json, a .tiktoken file, a Hugging Face folder, one of
            vocab.json and merges.txt (both must be in the same folder), or the name of a published
            encoding that tiktoken has downloaded: "cl100k", "o200k", "gpt2".
        match: a rule in place of the vocabulary's: "bpe" (merges in order) or "greedy" (longest
            token first).
        dtype: the type of the ids that `encode` returns; see `encode`.

        Raises VocabularyError if the vocabulary can't be read exactly or is damaged, and for an
        unknown rule; DeviceError as the constructor does. Notes go to the log "llmgpu", at level
        INFO.
        """
        with opening_device(device) as opening:
            from llmgpu.bpe.interchange.formats import open_vocabulary

            vocabulary = open_vocabulary(path, note=_log.info).with_match(match)
            return cls(vocabulary, opening, dtype=dtype)

    @classmethod
    def from_tiktoken(
        cls,
        path: str | Path,
        *,
        pattern: str | None = None,
        special_tokens: Mapping[str, int] | None = None,
        device: str = "auto",
    ) -> Self:
        """Read a .tiktoken file.

        pattern: name of the pattern that cuts text; required unless the file is a published
            encoding or has a side file. special_tokens: ids by text, added to the known tokens.

        Raises VocabularyError for a file that can't be read exactly, LlmgpuError for an unknown
        pattern. Notes go to the log "llmgpu", at level INFO.
        """
        with opening_device(device) as opening:
            files = VocabularyFiles(str(path), "tiktoken")
            read = files.read(_log.info, pattern=pattern, special_tokens=special_tokens)
            return cls(read, opening)

    @classmethod
    def from_huggingface(cls, path: str | Path, *, device: str = "auto") -> Self:
        """Read a Hugging Face tokenizer.json.

        Raises VocabularyError for a file that can't be read exactly. Notes go to the log "llmgpu",
        at level INFO.
        """
        with opening_device(device) as opening:
            return cls(VocabularyFiles(str(path), "huggingface").read(_log.info), opening)

    @classmethod
    def from_gpt2(
        cls,
        vocab: str | Path,
        merges: str | Path,
        *,
        pattern: str | None = None,
        special_tokens: Mapping[str, int] | None = None,
        device: str = "auto",
    ) -> Self:
        """Read GPT-2's two files, vocab.json and merges.txt.

        pattern: name of the pattern that cuts text, gpt2 by default. special_tokens: as in
            `from_tiktoken`.

        Raises VocabularyError for files that can't be read exactly.
        """
        with opening_device(device) as opening:
            files = VocabularyFiles(str(vocab), "gpt2", str(merges))
            read = files.read(_log.info, pattern=pattern, special_tokens=special_tokens)
            return cls(read, opening)

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str = "auto") -> Self:
        """Read the vocabulary in a Hugging Face folder.

        The first of these is read: tokenizer.json, tekken.json, tokenizer.model, vocab.json.

        Raises VocabularyError for a folder without these files, and for files that can't be read
        exactly. Notes go to the log "llmgpu", at level INFO.
        """
        with opening_device(device) as opening:
            from llmgpu.bpe.interchange.formats import find_in_folder

            return cls(find_in_folder(folder).read(_log.info), opening)

    @classmethod
    def train(
        cls,
        corpus: str | Path | Sequence[str | Path] | None = None,
        *,
        vocab_size: int,
        counts: str | Path | Sequence[str | Path] | None = None,
        pattern: str | None = None,
        min_frequency: int = 2,
        special_tokens: Sequence[str] = (),
        tie: str = "hf",
        max_token_length: int | None = None,
        match: str | None = None,
        reading: CorpusOptions | None = None,
        device: str = "auto",
    ) -> Self:
        """Train a vocabulary as ``llmgpu bpe-train`` does, with options named like its flags.

        corpus: files, folders or globs. reading: options for reading the corpus. counts: files of
            word counts, which are added up and trained on instead of a corpus. pattern: a name, or
            "regex:" and an expression; by default the default of bpe-train, or the pattern of the
            counts.

        Raises InputError for a corpus that is empty or can't be read, and for counts that don't fit
        each other or the options; DeviceError for a device that is missing or too small;
        LlmgpuError for an option out of range.
        """
        if (corpus is None) == (counts is None):
            raise InputError("give either corpus or counts")
        with opening_device(device, encodes=False) as opening:
            from llmgpu.tokenizer.jobs import train_on_counts_files, train_on_files

            options: dict[str, Any] = {
                "vocab_size": vocab_size,
                "pattern": pattern,
                "min_frequency": min_frequency,
                "special_tokens": special_tokens,
                "tie": tie,
                "max_token_length": max_token_length,
                "match": match,
            }
            if counts is not None:
                return cls(train_on_counts_files(names_of(counts), opening, options), device)
            assert corpus is not None
            return cls(train_on_files(names_of(corpus), reading, opening, options), device)

    @classmethod
    def train_from_iterator(
        cls,
        texts: Texts,
        *,
        vocab_size: int,
        device: str = "auto",
        **options: Any,
    ) -> Self:
        """Train on an iterable of documents, which is read document by document.

        Memory grows with the number of distinct words, not with the text.

        options: the other options of `train`, except `reading`.

        Raises the errors of `train`, and TypeError for a text that is not str or bytes, or if
        `texts` is a single str.
        """
        with opening_device(device, encodes=False) as opening:
            from llmgpu.tokenizer.jobs import train_on_texts

            options["vocab_size"] = vocab_size
            return cls(train_on_texts(several(texts), opening, options), device)

    @classmethod
    def train_from_counts(
        cls,
        counts: Mapping[str, int] | Mapping[bytes, int],
        *,
        vocab_size: int,
        pattern: str = DEFAULT_PATTERN,
        device: str = "auto",
        **options: Any,
    ) -> Self:
        """Train on words that were counted elsewhere.

        counts: number of occurrences of each word, 1 or more. A word is a pre-token that `pattern`
            cuts out of a text; no merge crosses its ends. options: the other options of `train`,
            except `reading`.

        Raises InputError for an empty word or a count below 1, and the errors of `train`.
        """
        with opening_device(device, encodes=False) as opening:
            from llmgpu.tokenizer.jobs import train_on_counts

            options |= {"vocab_size": vocab_size, "pattern": pattern}
            return cls(train_on_counts(counts, opening, options), device)

    @overload
    def encode(
        self, text: str | bytes, *, dtype: None = None, **special: Unpack[SpecialArguments]
    ) -> Ids: ...

    @overload
    def encode(
        self, text: str | bytes, *, dtype: ListType, **special: Unpack[SpecialArguments]
    ) -> list[int]: ...

    @overload
    def encode(
        self, text: str | bytes, *, dtype: NumPyType[Integer], **special: Unpack[SpecialArguments]
    ) -> NDArray[Integer]: ...

    @overload
    def encode(
        self, text: str | bytes, *, dtype: TorchType, **special: Unpack[SpecialArguments]
    ) -> Tensor: ...

    def encode(
        self,
        text: str | bytes,
        *,
        dtype: Any = None,
        allowed_special: Collection[str] = (),
        disallowed_special: Collection[str] = (),
        bos: Token | None = None,
        eos: Token | None = None,
        add_special_tokens: bool = False,
    ) -> Any:
        """Return the ids of a document: uint32 (n,).

        text: bytes are encoded as they are, valid UTF-8 or not. In a str, a surrogate pair becomes
            its character and any other surrogate becomes U+FFFD, as in tiktoken.
        dtype: ``list`` for a list of int, another NumPy dtype such as "int64", or a PyTorch dtype
            for a tensor ("pt" or ``torch.int64`` for ``nn.Embedding``). By default the `dtype` of
            `load` or the constructor, else uint32.
        allowed_special: special tokens to encode as their ids, "all" for all special tokens. The
            other special tokens are encoded as ordinary text.
        disallowed_special: special tokens that raise an error, "all" for all that aren't allowed.
        bos, eos: token to prepend and to append: an id, or the text of a single token.
        add_special_tokens: also add the special tokens that the vocabulary's tokenizer.json adds.

        Raises InputError for a disallowed special token, for a byte without a token if there is no
        unknown token, and for an id that `dtype` can't hold; VocabularyError for arguments that
        name no token; DeviceError if a device can't be opened or runs out of memory.
        """
        options = special_options(
            self._vocabulary, allowed_special, disallowed_special, bos, eos, add_special_tokens
        )
        encoders = self._current_encoders()
        data: bytes | memoryview | None = None
        if isinstance(text, str) and len(text) >= SHARED_FROM:
            data = encoders.bytes_of(text)
        if data is None:
            data = to_bytes(text, "use encode_batch for several")
        ids = encoders.encode_document(data, options, self._open_coder(encodes=True))
        if ids is None:
            ids = encoders.encode_documents([bytes(data)], options)[0]
        return as_asked(ids, self._dtype if dtype is None else dtype)

    def encode_ordinary(self, text: str | bytes) -> Ids:
        """Return the ids of a document as `encode` does, with special tokens as ordinary text."""
        return self.encode(text)

    def __call__(
        self, text: str | bytes | Iterable[str | bytes], *, dtype: Any = None
    ) -> dict[str, Any]:
        """Return the ids and the attention mask of a document, or of several, as transformers does.

        All special tokens are allowed in the text. The special tokens that the vocabulary's
        tokenizer.json puts around a text are added. Documents are not padded.

        dtype: the type of ids and mask; see `encode`.

        Returns a dict with "input_ids" and "attention_mask", (n,) each; lists of these for several
        documents.
        """
        dtype = self._dtype if dtype is None else dtype
        texts = [text] if isinstance(text, (str, bytes)) else [*text]
        import numpy as np

        arrays = self.encode_batch(
            texts, dtype=np.uint32, allowed_special=("all",), add_special_tokens=True
        )
        found = {
            "input_ids": [as_asked(ids, dtype) for ids in arrays],
            "attention_mask": [as_asked(ids * 0 + 1, dtype) for ids in arrays],
        }
        if isinstance(text, (str, bytes)):
            return {name: each[0] for name, each in found.items()}
        return found

    @overload
    def encode_batch(
        self, texts: Texts, *, dtype: None = None, **special: Unpack[SpecialArguments]
    ) -> list[Ids]: ...

    @overload
    def encode_batch(
        self, texts: Texts, *, dtype: ListType, **special: Unpack[SpecialArguments]
    ) -> list[list[int]]: ...

    @overload
    def encode_batch(
        self, texts: Texts, *, dtype: NumPyType[Integer], **special: Unpack[SpecialArguments]
    ) -> list[NDArray[Integer]]: ...

    @overload
    def encode_batch(
        self, texts: Texts, *, dtype: TorchType, **special: Unpack[SpecialArguments]
    ) -> list[Tensor]: ...

    def encode_batch(
        self,
        texts: Texts,
        *,
        dtype: Any = None,
        **special: Unpack[SpecialArguments],
    ) -> Any:
        """Encode several documents in one pass, and return a list with the ids of each document.

        Takes the arguments of `encode`, and raises its errors. Arrays of ids are views of one
        array. Raises TypeError for a single str, whose characters would be documents.
        """
        options = special_options(self._vocabulary, **special)
        dtype = self._dtype if dtype is None else dtype
        given, encoders = [*several(texts)], self._current_encoders()
        if options is NO_SPECIAL_TOKENS and (dtype is None or dtype is list):
            coder = self._open_coder(encodes=True)
            found = encoders.encode_batch(given, coder, as_list=dtype is list)
            if found is not None:
                return found
        documents = [to_bytes(text, "", number) for number, text in enumerate(given)]
        ids, starts = encoders.encode_documents(documents, options)
        bounds = [*starts.tolist(), len(ids)]
        ids = as_asked(ids, dtype)
        return [ids[begin:end] for begin, end in pairwise(bounds)]

    def encode_file(
        self,
        path: str | Path | Sequence[str | Path],
        *,
        reading: CorpusOptions | None = None,
        **special: Unpack[SpecialArguments],
    ) -> NDArray[np.uint32]:
        """Return the ids of all documents in files, folders or globs, end to end: uint32 (n,).

        By default a document is a file, or a line of a .jsonl file.

        Uses 4 bytes of memory per id, and reserves address space for one id per byte of text. If
        address space is limited, or if compression hides the size of the text, uses 8 bytes per id.

        reading: options for reading the files.

        Raises the errors of `encode`, and InputError for files that can't be read.
        """
        options = special_options(self._vocabulary, **special)
        return self._current_encoders().encode_files(names_of(path), reading, options)

    def encode_with_offsets(
        self, text: str | bytes, *, allowed_special: Collection[str] = ()
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the ids of a document, uint32 (n,), and their character offsets, int64 (n, 2).

        A row has the index of a token's first character, and the index after its last character. A
        character that several tokens share belongs to all of them. A special token includes the
        white space that it swallows. With a normalizer, offsets refer to the normalized text,
        without swallowed white space.

        Raises the errors of `encode`, and InputError for a vocabulary of SentencePiece's kind
        without byte tokens.
        """
        is_plain = isinstance(allowed_special, tuple) and not allowed_special
        # Let the extension module encode, unless a subclass overrides `encode`.
        is_usual = is_plain and isinstance(self.encode, BuiltinMethodType)
        ids = self._coder.encode(text) if is_usual and self._coder is not None else None
        if ids is None:
            import numpy as np

            ids = self.encode(text, dtype=np.uint32, allowed_special=allowed_special)
        vocabulary = self._vocabulary
        if vocabulary.pieces is not None and not vocabulary.pieces.has_bytes:
            raise InputError("offsets are not known without byte tokens: use encode")
        if vocabulary.normalizer:
            text = vocabulary.decode(ids)
        elif vocabulary.swallows_space and allowed_special:
            return ids, self._spans_with_swallowed(text, ids, allowed_special)
        spans = None if self._coder is None else self._coder.spans(text, ids)
        if spans is None:
            from llmgpu.bpe.vocabulary.spelling import character_spans

            spans = character_spans(to_bytes(text), vocabulary.token_spans[ids])
        return ids, spans

    def _spans_with_swallowed(
        self, text: str | bytes, ids: NDArray[np.uint32], allowed_special: Collection[str]
    ) -> NDArray[np.int64]:
        """Return the character offsets of ids, int64 (n, 2), if special tokens swallow white space.

        The offsets of a special token include the white space that it swallows.
        """
        import numpy as np

        from llmgpu.bpe.encoding.special_encoding import special_matches
        from llmgpu.bpe.vocabulary.spelling import character_spans

        vocabulary, encoded = self._vocabulary, to_bytes(text)
        lengths = vocabulary.token_spans[ids]
        matches = special_matches(vocabulary, allowed_special, encoded)
        special = np.isin(ids, list(vocabulary.special_tokens.values()))
        lengths[special] = [last - first for first, _, _, last in matches]
        return character_spans(encoded, lengths)

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
        chat_template: str | None = None,
    ) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
        """Return the ids of a conversation, uint32 (n,), and a mask of assistant tokens, bool (n,).

        The result is the same as that of ``llmgpu tokenize --chat``. The vocabulary's chat template
        renders the conversation as text, or ChatML's template if the vocabulary only has ChatML's
        tokens. All special tokens are allowed in this text. The mask is True for the ids that a
        model is trained to predict.

        messages: each with "role" and "content". tools: passed to the template.
        add_generation_prompt: append the prompt of an assistant message. chat_template: a Jinja
            template to use instead of the vocabulary's.

        Raises VocabularyError if there is no template; InputError for messages that the template
        can't render within its limits, and if the package jinja2 is missing.
        """
        return self._chat.encode(messages, tools, add_generation_prompt, chat_template)

    def render_chat_template(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
        chat_template: str | None = None,
    ) -> str:
        """Return the text that `apply_chat_template` encodes; takes the same arguments."""
        return self._chat.render(messages, tools, add_generation_prompt, chat_template)

    @cached_property
    def _chat(self) -> ChatEncoder:
        import numpy as np

        from llmgpu.tokenizer.encoders import ChatEncoder

        # A reference from the encoder would keep the tokenizer alive.
        tokenizer = weakref.proxy(self)
        return ChatEncoder(
            self._vocabulary,
            lambda data: tokenizer.encode(data, dtype=np.uint32, allowed_special=("all",)),
        )

    def count(self, text: str | bytes, *, allowed_special: Collection[str] = ()) -> int:
        """Return the number of ids of a document."""
        return len(self.encode(text, allowed_special=allowed_special))

    def truncate(self, text: str, tokens: int) -> str:
        """Return the beginning of a text with at most `tokens` ids, cut between characters.

        With a normalizer, a text that has to be cut is returned normalized.

        Raises InputError for a number below 0, and the errors of `encode`.
        """
        tokens = index(tokens)
        if tokens < 0:
            raise InputError(f"can't truncate to {tokens} tokens; use 0 or more")
        ids = self.encode(text, dtype="uint32")
        if len(ids) <= tokens:
            return text
        for kept in range(tokens, 0, -1):
            cut = self.decode_bytes(ids[:kept]).decode(errors="ignore")
            if len(self.encode(cut)) <= tokens:
                return cut
        return ""

    def chunks(self, text: str, tokens: int, *, overlap: int = 0) -> list[str]:
        """Return a text in chunks, for retrieval; each chunk alone has at most `tokens` ids.

        Chunks are cut between characters. A character with more ids is a chunk of its own. With a
        normalizer, the text is normalized.

        overlap: number of ids at the end of a chunk that the next chunk repeats, approximately,
        because cuts are between characters.

        Raises InputError unless 0 <= overlap < tokens, and the errors of `encode`.
        """
        tokens, overlap = index(tokens), index(overlap)
        if tokens < 1:
            raise InputError(f"a chunk has 1 token or more, not {tokens}")
        if not 0 <= overlap < tokens:
            raise InputError(f"chunks of {tokens} tokens can't overlap by {overlap} tokens")
        from llmgpu.bpe.vocabulary.spelling import chunks_of

        ids, spans = self.encode_with_offsets(text)
        text_of_ids = self._vocabulary.decode(ids).decode(errors="replace")
        return [*chunks_of(text_of_ids, spans, tokens, overlap, self.count)]

    def __repr__(self) -> str:
        facts = f"{self.vocab_size} ids, pattern ", f", device {shortened(repr(self._device), 40)}"
        room = _MOST_SHOWN - len("<Tokenizer: >") - sum(map(len, facts))
        return f"<Tokenizer: {facts[0]}{shortened(self._vocabulary.pattern, room)}{facts[1]}>"

    def __eq__(self, other: object) -> bool:
        """Whether both tokenizers give the same ids. The device does not matter."""
        if not isinstance(other, Tokenizer):
            return NotImplemented
        same_special = self.special_tokens == other.special_tokens
        return same_special and self._vocabulary.fingerprint == other._vocabulary.fingerprint

    def __hash__(self) -> int:
        return hash(self._vocabulary.fingerprint)

    def __dir__(self) -> list[str]:
        owner, own = type(self), vars(self)
        return [name for name in super().__dir__() if name in own or not is_other_name(owner, name)]

    def __getstate__(self) -> tuple[Any, ...]:
        return self._vocabulary.to_bytes(), self._device, self._dtype

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
        from llmgpu.tokenizer.encoders import ProcessEncoders

        data, self._device, self._dtype = state
        self._vocabulary = Vocabulary.from_bytes(data, "pickled vocabulary")
        self._encoders = ProcessEncoders(self._vocabulary, Opening(self._device, encodes=True))

    def _open_coder(self, *, encodes: bool) -> Any:
        """Store and return the extension module's object for fast calls, or return None."""
        if self._is_prepared:
            return self._coder
        from llmgpu.bpe.encoding import encoder_c
        from llmgpu.cpu.extension import ARRAY, LIST, NARROW, OTHER, bind_methods
        from llmgpu.tokenizer.encoders import HOST_BYTES, MOST_AT_ONCE

        most_bytes = MOST_AT_ONCE if self._device == "cpu" else HOST_BYTES
        opened = encoder_c.open_coder(self._vocabulary, most_bytes if encodes else None)
        if opened is not None:
            other = OTHER if holds(self._dtype, self.vocab_size - 1) else NARROW
            opened.usual = {None: ARRAY, list: LIST}.get(self._dtype, other)
        bind_methods(_IN_PYTHON)
        # Store the object last, because other threads use it as soon as it is stored. If several
        # threads open one, the first that encodes stays, or else the first. Without an object to
        # decode, there is none to encode.
        if (encodes or opened is None) and not self._is_prepared:  # by another thread
            self._coder, self._is_prepared = opened, True
        elif opened is not None:
            vars(self).setdefault("_coder", opened)
        return self._coder

    def _current_encoders(self) -> ProcessEncoders:
        encoders = self._encoders
        if encoders.process != os.getpid():
            encoders = self._encoders = encoders.renewed()
        return encoders


# Methods with a fast version in the extension module, see `llmgpu/cpu/python/calls.c`.
_USUAL = {Tokenizer: ("encode", "count"), Decoder: ("decode", "decode_bytes", "token_to_id")}
_IN_PYTHON = {owner: {name: vars(owner)[name] for name in names} for owner, names in _USUAL.items()}
