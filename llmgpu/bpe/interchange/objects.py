"""A vocabulary as an object of another Python package, for code that expects one."""

from __future__ import annotations

import importlib
import json
from typing import Any

from llmgpu.bpe.interchange import huggingface, tiktoken
from llmgpu.bpe.interchange.formats import END_OF_TEXT
from llmgpu.bpe.interchange.token_tables import TIKTOKEN, expression_of
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import VocabularyError


def to_tiktoken(vocabulary: Vocabulary, name: str) -> Any:
    """Return a `tiktoken.Encoding` that gives the same ids.

    Raises VocabularyError if ranks can't give them, or tiktoken is not installed.
    """
    ranks = tiktoken.exportable_ranks(vocabulary)
    return _module("tiktoken").Encoding(
        name,
        pat_str=expression_of(vocabulary.pattern, TIKTOKEN),
        mergeable_ranks=ranks,
        special_tokens=dict(vocabulary.special_tokens),
    )


def to_transformers(vocabulary: Vocabulary) -> Any:
    """Return a `transformers.PreTrainedTokenizerFast` that gives the same ids.

    Its end of a sequence is ``<|endoftext|>``, if that is a special token.

    Raises VocabularyError if a tokenizer.json can't give them, or transformers is not installed.
    """
    library = _module("transformers")
    inner = _module("tokenizers").Tokenizer.from_str(json.dumps(huggingface.describe(vocabulary)))
    end = END_OF_TEXT if END_OF_TEXT in vocabulary.special_tokens else None
    return library.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=end)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise VocabularyError(f"the package {name} is missing: pip install {name}") from error
