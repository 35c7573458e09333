"""The chat template in the files that Hugging Face's libraries keep beside a tokenizer.json.

- The template is in chat_template.jinja, or else in tokenizer_config.json: as a text, or as a list
  of several, of which the one called "default" is taken.
- The special tokens that it names, ``bos_token`` and the like, are in tokenizer_config.json or else
  in special_tokens_map.json, as texts or as objects with a ``content``.
- A template is of no use to most commands: files about it that can't be read are noted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmgpu.bpe.vocabulary.chat import ChatTemplate
from llmgpu.errors import VocabularyError
from llmgpu.input_files import Note, decode_text, naming, parse_json, read_limited

_TEMPLATE = "chat_template.jinja"
_CONFIG, _TOKENS_MAP = "tokenizer_config.json", "special_tokens_map.json"
_TOKENS = [f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]


def read_chat_template(folder: Path, note: Note) -> ChatTemplate | None:
    """Return the template in the files of a folder; None if there is none, or it is noted."""
    try:
        config = _read_object(folder / _CONFIG)
        source = _read_source(folder, config)
        if source is None:
            return None
        with naming(folder):
            return ChatTemplate(source, _named(_read_object(folder / _TOKENS_MAP)) | _named(config))
    except VocabularyError as error:
        note(f"the chat template is skipped: {error}")
        return None


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    with naming(path):
        content = parse_json(read_limited(path))
        if not isinstance(content, dict):
            raise VocabularyError("not a JSON object")
    return content


def _read_source(folder: Path, config: Mapping[str, Any]) -> str | None:
    if (folder / _TEMPLATE).is_file():
        with naming(folder / _TEMPLATE):
            return decode_text(read_limited(folder / _TEMPLATE))
    found = config.get("chat_template")
    if isinstance(found, list):
        named = [entry for entry in found if isinstance(entry, dict)]
        defaults = (entry for entry in named if entry.get("name") == "default")
        found = next(defaults, {}).get("template")
    return found if isinstance(found, str) else None


def _named(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of the special tokens that a file names."""
    found = {name: config.get(name) for name in _TOKENS}
    texts = {k: v.get("content") if isinstance(v, dict) else v for k, v in found.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}
