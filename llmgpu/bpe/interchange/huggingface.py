"""Hugging Face's tokenizer.json: byte-level BPE with everything around it in one file.

- The readable components are the components of GPT-2, Llama 3, Qwen, DeepSeek and similar models: a
  ByteLevel pre-tokenizer, possibly after Splits and Digits (`llmgpu.bpe.interchange.components`),
  and the normalizers of `llmgpu.text.normalizing`. Any other component would change ids, so an
  error names and refuses it.
- Added tokens become special tokens with their ids. The library matches added tokens in any text;
  llmgpu matches special tokens only if the caller allows it. The tokens that a post-processor puts
  around a text are kept, but added only on request. A note states both differences.
- A vocabulary that has ranks but no merges is written with recovered merges and ignore_merges. The
  ids stay the same; see `llmgpu.bpe.vocabulary.building`.
- The chat template beside a tokenizer.json is kept. An export to a folder writes the template into
  tokenizer_config.json.
- If an added token is not among the model's tokens, the library ignores the token's id in the file
  and numbers the token anew. For this reason special tokens are written in both places, as in
  GPT-2's file. A file is refused if the library would number its tokens differently.
- With ignore_merges, a pre-token that spells one of the model's tokens becomes this token, even if
  it is an added token. The search for added tokens misses such a pre-token if only the normalizer
  makes the token's text, or if the token has the flag single_word and stands inside a word. The
  vocabulary lists these tokens in `whole_tokens`. If another special token could become a
  pre-token, an export leaves the special tokens out of the model's tokens. The export is refused if
  the library would then give the special tokens other ids.

The chat template is in chat_template.jinja, or else in tokenizer_config.json. In
tokenizer_config.json it is a text, or a list of templates, of which "default" is used. The
template's special tokens, such as ``bos_token``, are in tokenizer_config.json or else in
special_tokens_map.json, as texts or as objects with a ``content``. Most commands need no template,
so unreadable files about templates only cause a note.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgpu.bpe.interchange import piece_files
from llmgpu.bpe.interchange.components import (
    POST_PROCESSORS,
    PRE_TOKENIZERS,
    Model,
    Steps,
    check_added_ids,
    check_unmerged,
    describe_around,
    describe_pattern,
    find_whole,
    read_around,
    read_pattern,
)
from llmgpu.bpe.interchange.formats import END_OF_TEXT
from llmgpu.bpe.interchange.piece_files import (
    describe_decoder,
    describe_steps,
    name_pieces,
    pairs_by_score,
    unused_characters,
)
from llmgpu.bpe.interchange.token_tables import (
    check_distinct,
    check_id,
    check_vocabulary_map,
    find_end_of_text,
    imported_vocabulary,
    name_bytes,
    name_pairs,
    note_missing_bytes,
    note_unicode,
    number_merges,
    place_tokens,
    require_package,
    stands_for_bytes,
    to_bytes,
    write_files,
)
from llmgpu.bpe.vocabulary.building import listed_merges
from llmgpu.bpe.vocabulary.file import ChatTemplate
from llmgpu.bpe.vocabulary.pieces import USER
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError
from llmgpu.file_kinds import SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG, TOKENIZER_JSON
from llmgpu.input_files import (
    Note,
    decode_text,
    listed,
    naming,
    no_notes,
    parse_json,
    quote,
    read_limited,
    require_known,
)
from llmgpu.outputs import Output
from llmgpu.text.chat import plain_template
from llmgpu.text.normalizing import (
    STEPS,
    get_normalizer,
    spell_normalizer,
    steps_of,
)

_FOLDER = {
    "tokenizer.json": TOKENIZER_JSON,
    "tokenizer_config.json": TOKENIZER_CONFIG,
    "special_tokens_map.json": SPECIAL_TOKENS_MAP,
}

_SEQUENCES = {  # key of the list of components in each kind of Sequence
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}
_PARTS = ("version", "truncation", "padding", "added_tokens", "model", *_SEQUENCES)
_MODEL_REFUSED = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
_BYTES_REFUSED = (*_MODEL_REFUSED, "fuse_unk", "byte_fallback")  # refused in byte-level models
_MODEL_PARTS = ("type", "vocab", "merges", "unk_token", "ignore_merges", *_BYTES_REFUSED)
# Flags of added tokens. The ids with a flag are in a field of Vocabulary: single_word_tokens etc.
_ADDED_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
# The supported types of components, in byte-level files and in files of SentencePiece's kind.
_BYTES_COMPONENTS = {
    "pre_tokenizer": PRE_TOKENIZERS,
    "normalizer": STEPS,
    "decoder": {"ByteLevel"},
    "post_processor": POST_PROCESSORS,
}
_PIECES_COMPONENTS = {
    **_BYTES_COMPONENTS,
    "pre_tokenizer": piece_files.PRE_TOKENIZERS,
    "decoder": piece_files.DECODERS,
}


def read(path: str | Path, *, note: Note = no_notes) -> Vocabulary:
    """Read a tokenizer.json, and the chat template beside it; see `formats.Reader.read`."""
    with naming(path):
        content = _as_map("the file", parse_json(read_limited(path)))
        return read_content(content, lambda: read_chat_template(Path(path).parent, note), note)


def read_content(
    content: Mapping[str, Any],
    chat: Callable[[], ChatTemplate | None] = lambda: None,
    note: Note = no_notes,
) -> Vocabulary:
    """Return the vocabulary of a tokenizer.json whose JSON is already parsed.

    chat: returns the chat template, or None. note: see `formats.Reader.read`.

    Raises VocabularyError for content that can't be read exactly.
    """
    # Read the parts that files of both kinds have. rules: further fields of Vocabulary.
    model, is_pieces = _model_of(content), piece_files.is_of_pieces(content)
    supported = _PIECES_COMPONENTS if is_pieces else _BYTES_COMPONENTS
    parts = {what: _steps(what, content.get(what), known) for what, known in supported.items()}
    prefix_ids, suffix_ids = read_around(parts["post_processor"], note)
    added, plain, rules = _read_added(content.get("added_tokens"))
    rules |= {"prefix_ids": prefix_ids, "suffix_ids": suffix_ids, "chat": chat()}
    refused = _MODEL_REFUSED if is_pieces else _BYTES_REFUSED
    ids, merges, unknown = _read_model(model, added, refused)
    described = Model(model, ids, merges, unknown, added, plain, parts)
    if is_pieces:
        vocabulary = piece_files.make_vocabulary(described, **rules)
    else:
        for part in ("truncation", "padding"):
            if content.get(part) is not None:
                note(f"{part} is not applied")
        if plain:
            note(
                "added tokens that are not special are matched here only where special tokens are "
                f"allowed, not in any text: {listed(plain)}"
            )
        vocabulary = _read_bytes(described, note, **rules)
        note_missing_bytes(vocabulary, note)
    _check_different(vocabulary)
    return vocabulary


def outputs(path: str | Path) -> list[Output]:
    """Return the file that `write` would write, or the files if `path` is a folder."""
    if not (os.path.isdir(path) or str(path).endswith(("/", os.sep))):
        return [Output(str(path), TOKENIZER_JSON)]
    return [Output(os.path.join(path, name), kind) for name, kind in _FOLDER.items()]


def write(
    vocabulary: Vocabulary, path: str | Path, *, note: Note = no_notes, force: bool = False
) -> None:
    """Write a tokenizer.json; see `llmgpu.bpe.interchange.formats.Writer.write`.

    path: a file, or a folder for AutoTokenizer, existing or with a slash at the end.
    """
    content = describe(vocabulary)
    tokens = name_tokens(vocabulary)
    described = content, describe_config(vocabulary, tokens), tokens
    texts = [json.dumps(each, ensure_ascii=False, indent=1) + "\n" for each in described]
    files = outputs(path)
    folder = path if len(files) > 1 else None
    write_files(files, [*map(str.encode, texts)], force=force, folder=folder)
    note_unicode(vocabulary, note)
    if vocabulary.chat and len(files) == 1:
        note("the chat template is not in a tokenizer.json: export to a folder")
    count = len(content["model"]["vocab"].keys() | vocabulary.special_tokens.keys())
    if count < vocabulary.size:
        note(f"{count:,} of {vocabulary.size:,} ids have tokens, so len(tokenizer) is {count:,}")


def name_tokens(vocabulary: Vocabulary) -> dict[str, str]:
    """Return the texts of the end-of-text token and of the chat template's tokens, by role.

    A role is a key such as ``eos_token``.
    """
    end = find_end_of_text(vocabulary.special_tokens)
    named = {} if vocabulary.chat is None else vocabulary.chat.tokens
    return ({"eos_token": end} if end else {}) | dict(named)


def describe_config(
    vocabulary: Vocabulary, tokens: Mapping[str, str], max_length: int | None = None
) -> dict[str, Any]:
    """Return the content of a tokenizer_config.json.

    tokens: texts of special tokens by role. max_length: the largest number of ids that a model
    accepts.
    """
    chat = vocabulary.chat
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        **tokens,
        "chat_template": chat.source if chat else plain_template(vocabulary.special_tokens),
    }
    return {key: value for key, value in content.items() if value is not None}


def describe(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the content of a tokenizer.json; VocabularyError if it can't give the same ids."""
    # texts: by id. unknown: id of the unknown token, None if each byte has a token.
    rules, unknown = vocabulary.pieces, vocabulary.unknown_token
    if rules is None:
        texts = name_bytes(vocabulary, "Hugging Face's tokenizers")
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        steps = steps_of(vocabulary.normalizer)
        cut: dict[str, Any] | None = describe_pattern(vocabulary.pattern, byte_level)
        decoder = byte_level | {"use_regex": True}
        unknown = unknown if vocabulary.missing_bytes else None
        left_out = _left_out(vocabulary, texts, unknown)
        merges = name_pairs(texts, listed_merges(vocabulary))
    else:
        texts = name_pieces(vocabulary)
        steps, cut = describe_steps(vocabulary)
        decoder = describe_decoder(rules)
        left_out = unused_characters(vocabulary)
        merges = pairs_by_score(vocabulary) if rules.ranks else name_pairs(texts, vocabulary.merges)
    if len(steps) > 1:
        steps = [{"type": "Sequence", "normalizers": steps}]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _describe_added(vocabulary, texts),
        "normalizer": steps[0] if steps else None,
        "pre_tokenizer": cut,
        "post_processor": describe_around(vocabulary, texts),
        "decoder": decoder,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None if unknown is None else texts.get(unknown, ""),
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": rules is not None and rules.fuses,
            "byte_fallback": rules is not None and rules.has_bytes,
            "ignore_merges": vocabulary.ignore_merges,
            "vocab": {text: number for number, text in texts.items() if number not in left_out},
            "merges": merges,
        },
    }


def to_transformers(vocabulary: Vocabulary) -> Any:
    """Return a `transformers.PreTrainedTokenizerFast` with the same ids.

    A special token ``<|endoftext|>`` becomes the tokenizer's end-of-sequence token.

    Raises VocabularyError if a tokenizer.json can't give the same ids, or transformers is not
    installed.
    """
    library = require_package("transformers")
    inner = require_package("tokenizers").Tokenizer.from_str(json.dumps(describe(vocabulary)))
    end = END_OF_TEXT if END_OF_TEXT in vocabulary.special_tokens else None
    return library.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=end)


def _left_out(vocabulary: Vocabulary, texts: Mapping[int, str], unknown: int | None) -> set[int]:
    """Return the ids of special tokens that are not to be written into the model.

    There are none unless a pre-token could spell a special token that is not in `whole_tokens`. In
    this case all special tokens are left out, except `whole_tokens` and the unknown token.

    texts: by id. unknown: id of the unknown token.

    Raises VocabularyError if Hugging Face's library would give other ids to the special tokens that
    are left out.
    """
    whole = set(vocabulary.whole_tokens)
    special = {k: v for k, v in vocabulary.special_tokens.items() if v not in whole}
    reached = find_whole(special if vocabulary.ignore_merges else {}, vocabulary)
    if not reached:
        return set()
    left_out = {number for number in special.values() if number != unknown}
    kept = {text: number for number, text in texts.items() if number not in left_out}
    added = dict(sorted(vocabulary.special_tokens.items(), key=lambda item: item[1]))
    text = quote(vocabulary.tokens[reached[0]])
    with naming(
        f"the special token {text} would also be a token of the model, which normalized text can "
        "spell, and it can't be left out"
    ):
        check_added_ids(added, kept)
    return left_out


def _describe_added(vocabulary: Vocabulary, texts: Mapping[int, str]) -> list[dict[str, Any]]:
    flagged = {flag: set(getattr(vocabulary, f"{flag}_tokens")) for flag in _ADDED_FLAGS}
    rules = vocabulary.pieces
    return [
        {
            "id": i,
            "content": texts[i],
            **{flag: i in ids for flag, ids in flagged.items()},
            "special": rules is None or rules.kinds[i] != USER,
        }
        for i in sorted(vocabulary.special_tokens.values())
    ]


def _as_map(what: str, content: object) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise VocabularyError(f"{what} is not a JSON object")
    return content


def _as_list(what: str, content: object) -> list[Any]:
    if not isinstance(content, list):
        raise VocabularyError(f"{what} is not a list")
    return content


def _typed(what: str, component: object) -> tuple[str, dict[str, Any]]:
    """Return the type and the content of a component."""
    content = _as_map(what, component)
    if not isinstance(content.get("type"), str):
        raise VocabularyError(f"{what} has no type")
    return content["type"], content


def _steps(what: str, component: object, supported: Set[str]) -> Steps:
    """Return the type and content of a component, or of each component of a Sequence.

    component: content of the file; None gives no components. Raises VocabularyError for a type that
    is not in `supported`.
    """
    if component is None:
        return []
    typed = [_typed(what, component)]
    if typed[0][0] == "Sequence":
        steps = _as_list(f"Sequence in {what}", typed[0][1].get(_SEQUENCES[what]))
        typed = [_typed(what, step) for step in steps]
    for kind, _ in typed:
        if kind == "Sequence":
            raise VocabularyError(f"{what} has a Sequence in a Sequence")
        if kind not in supported:
            known = ", ".join(sorted(supported))
            raise VocabularyError(f"{what} {quote(kind)} is not supported; supported: {known}")
    return typed


def _model_of(content: Mapping[str, Any]) -> dict[str, Any]:
    if "model" not in content:
        raise VocabularyError("not a tokenizer.json: no model (a vocab.json needs merges)")
    for part in content:
        require_known("part", part, _PARTS, VocabularyError)
    model = _as_map("model", content["model"])
    kind, _ = _typed("model", {"type": "BPE"} | model)
    if kind != "BPE":
        raise VocabularyError(f"model {quote(kind)} is not supported; supported: BPE")
    return model


def _read_added(content: object) -> tuple[dict[str, int], list[str], dict[str, Any]]:
    """Return ids of added tokens by text, texts that are not special, and ids by flag.

    The ids ascend. They are given by the names of fields of Vocabulary.
    """
    added: dict[str, int] = {}
    plain: list[str] = []
    flagged: dict[str, list[int]] = {flag: [] for flag in _ADDED_FLAGS}
    for entry in _as_list("added_tokens", [] if content is None else content):
        text = _as_map("an added token", entry).get("content")
        if not isinstance(text, str) or not text:
            raise VocabularyError("an added token has no content")
        if text in added:
            raise VocabularyError(f"the added token {quote(text)} is listed twice")
        added[text] = check_id(f"added token {quote(text)}", entry.get("id"))
        if entry.get("special") is not True:
            plain.append(text)
        for flag, ids in flagged.items():
            if entry.get(flag):
                ids.append(added[text])
    return added, plain, {f"{flag}_tokens": tuple(sorted(ids)) for flag, ids in flagged.items()}


def _check_different(vocabulary: Vocabulary) -> None:
    """Raise VocabularyError if normalizing makes two normalized added tokens equal, or one empty.

    Hugging Face's library searches normalized text for these tokens.
    """
    if vocabulary.normalizer is None:
        return
    normalize = get_normalizer(vocabulary.normalizer).apply
    late, special = set(vocabulary.normalized_tokens), vocabulary.special_tokens
    found = {text: normalize(text) for text, number in special.items() if number in late}
    for text in (text for text, normalized in found.items() if not normalized):
        raise VocabularyError(f"the added token {quote(text)} is empty once it is normalized")
    check_distinct(
        found,
        "the added tokens {} and {} are the same text once it is normalized, and the library takes "
        "either: remove one of them",
    )


def _read_model(
    model: Mapping[str, Any], added: dict[str, int], refused: Iterable[str]
) -> tuple[dict[str, int], NDArray[np.uint32], int | None]:
    """Return the ids by text of a model's tokens, its merges, and the unknown token's id.

    Merges are uint32 (M, 3). refused: parts of the model that raise VocabularyError.
    """
    for part in model:
        require_known("part of the model", part, _MODEL_PARTS, VocabularyError)
    for name in refused:
        if model.get(name):
            raise VocabularyError(f"model BPE with {name} is not supported")
    ids = check_vocabulary_map(model.get("vocab"))
    merges = number_merges(enumerate(_as_list("merges", model.get("merges")), 1), ids)
    check_added_ids(added, ids)
    unknown = model.get("unk_token")
    if unknown is not None and (not isinstance(unknown, str) or unknown not in ids):
        raise VocabularyError(f"the unk_token {quote(unknown)} is not a token")
    return ids, merges, None if unknown is None else ids[unknown]


def _read_bytes(model: Model, note: Note, **rules: Any) -> Vocabulary:
    """Return the vocabulary of a byte-level model; see `piece_files.make_vocabulary`."""
    ids, added = model.ids, model.added
    cut = read_pattern(model.parts["pre_tokenizer"], note)
    normalizer = spell_normalizer([step for _, step in model.parts["normalizer"]])
    if normalizer is None and len(rules["normalized_tokens"]) == len(added):
        rules["normalized_tokens"] = ()  # without a normalizer, both searches see the same text
    ignore_merges = bool(model.content.get("ignore_merges"))
    _check_apart(model)
    # Separate the added tokens from the tokens that represent bytes.
    ordinary = {number: to_bytes(text) for text, number in ids.items() if text not in added}
    if len(model.merges) == 0:
        check_unmerged(set(ordinary.values()), ignore_merges)
    vocabulary = imported_vocabulary(
        "huggingface",
        place_tokens(ordinary, added),
        added,
        model.merges,
        cut,
        ignore_merges=len(model.merges) == 0 or ignore_merges,
        normalizer=normalizer,
        unknown_token=model.unknown,
        **rules,
    )
    both = {text: number for text, number in added.items() if ignore_merges and text in ids}
    whole = find_whole(both, vocabulary)
    return replace(vocabulary, whole_tokens=tuple(sorted(whole))) if whole else vocabulary


def _check_apart(model: Model) -> None:
    """Check that added and unknown tokens are in no merge, and no added token is one byte."""
    merged = set(model.merges.reshape(-1).tolist())
    unknowns = {text: number for text, number in model.ids.items() if number == model.unknown}
    for text, number in (model.added | unknowns).items():
        if number in merged:
            raise VocabularyError(f"the token {quote(text)} is added or unknown, and in a merge")
    for text in model.added:
        if text in model.ids and len(text) == 1 and stands_for_bytes(text):
            raise VocabularyError(
                f"the added token {quote(text)} is also the byte 0x{to_bytes(text)[0]:02x} of the "
                "model, and can't be both here: remove it from added_tokens"
            )


_CHAT_TEMPLATE = "chat_template.jinja"
_CONFIG, _TOKENS_MAP = "tokenizer_config.json", "special_tokens_map.json"
_TOKENS = [f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]


def read_chat_template(folder: Path, note: Note) -> ChatTemplate | None:
    """Return the chat template in a folder's files.

    Returns None if there is no template, or if the files are unreadable; in the second case `note`
    reports it.
    """
    try:
        config = _read_object(folder / _CONFIG)
        source = _read_source(folder, config)
        tokens = _named(_read_object(folder / _TOKENS_MAP)) | _named(config)
        with naming(folder):
            return ChatTemplate(source or "", tokens) if source or tokens else None
    except VocabularyError as error:
        note(f"the chat template is skipped: {error}")
        return None


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    with naming(path):
        return _as_map("the file", parse_json(read_limited(path)))


def _read_source(folder: Path, config: Mapping[str, Any]) -> str | None:
    if (folder / _CHAT_TEMPLATE).is_file():
        with naming(folder / _CHAT_TEMPLATE):
            return decode_text(read_limited(folder / _CHAT_TEMPLATE))
    found = config.get("chat_template")
    if isinstance(found, list):
        named = [entry for entry in found if isinstance(entry, dict)]
        defaults = (entry for entry in named if entry.get("name") == "default")
        found = next(defaults, {}).get("template")
    return found if isinstance(found, str) else None


def _named(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of special tokens by role. The roles are the keys of _TOKENS."""
    found = {name: config.get(name) for name in _TOKENS}
    texts = {k: v.get("content") if isinstance(v, dict) else v for k, v in found.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}
