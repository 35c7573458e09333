"""Arguments and results of the Python API: texts, special tokens, and ids of a requested type."""

from __future__ import annotations

import importlib
import os
from collections.abc import Collection, Iterable, Sequence
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, TypedDict, TypeVar

from llmgpu.bpe.encoding.special_options import NO_SPECIAL_TOKENS, SpecialOptions
from llmgpu.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from llmgpu.bpe.vocabulary.vocabulary import Vocabulary

Text = TypeVar("Text", str, str | bytes)
Token = int | str

_NONE: Collection[str] = ()


class SpecialArguments(TypedDict, total=False):
    """The arguments about special tokens that all encoding methods take."""

    allowed_special: Collection[str]
    disallowed_special: Collection[str]
    bos: Token | None
    eos: Token | None
    add_special_tokens: bool


def special_options(
    vocabulary: Vocabulary,
    allowed_special: Collection[str] = _NONE,
    disallowed_special: Collection[str] = _NONE,
    bos: Token | None = None,
    eos: Token | None = None,
    add_special_tokens: bool = False,
    **unknown: object,
) -> SpecialOptions:
    """Return the arguments as options that can be compared and hashed.

    Takes the arguments of `Tokenizer.encode`. Raises TypeError for an unknown argument.
    """
    if unknown:
        known = ", ".join(SpecialArguments.__annotations__)
        raise TypeError(f"unexpected argument {min(unknown)!r}; there are {known}")
    given = bos is not None or eos is not None or add_special_tokens
    if allowed_special is _NONE and disallowed_special is _NONE and not given:
        return NO_SPECIAL_TOKENS  # most calls give no such arguments
    allowed, disallowed = _texts(allowed_special), _texts(disallowed_special)
    options = SpecialOptions(allowed, disallowed, _one_token(bos), _one_token(eos))
    return options.around(vocabulary) if add_special_tokens else options


def _texts(given: Collection[str]) -> frozenset[str]:
    return frozenset([given] if isinstance(given, str) else given)


def _one_token(token: Any) -> Any:
    """Return a token as a value that can be hashed: a text unchanged, an id as an int.

    An id may be an integer of NumPy. Raises TypeError for other types.
    """
    if token is None or isinstance(token, (str, tuple)):
        return token
    if isinstance(token, bool) or not isinstance(token, SupportsIndex):
        found = type(token).__name__
        raise TypeError(f"bos and eos are an id or the text of a token, not a {found}")
    return index(token)


def several(texts: Iterable[Text]) -> Iterable[Text]:
    """Return `texts`; TypeError for a single text, whose characters would be taken as texts."""
    if isinstance(texts, (str, bytes)):
        raise TypeError("expected a list of texts, but got a single one")
    return texts


def names_of(paths: str | Path | Sequence[str | Path]) -> list[str]:
    """Return the name of one path, or the names of several, as a list."""
    return [os.fspath(path) for path in ([paths] if isinstance(paths, (str, Path)) else paths)]


def to_bytes(text: Any, of_several: str = "", number: int | None = None) -> bytes:
    """Return a text in UTF-8; TypeError unless it is str or bytes.

    of_several: advice that the error adds if `text` is a list of texts. number: position of the
    text among several texts, from 0, which the error adds.
    """
    if isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        advice = f"; {of_several}" if of_several and isinstance(text, (list, tuple)) else ""
        place = "" if number is None else f", as text {number} (from 0) is"
        raise TypeError(f"a text is str or bytes, not {type(text).__name__}{place}{advice}")
    try:
        return str.encode(text)  # a subclass of str may have another `encode`
    except UnicodeEncodeError:
        return str.encode(text, "utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def as_asked(ids: NDArray[np.uint32], dtype: Any) -> Any:
    """Return ids (n,) in the requested form: a list, a tensor or an array.

    dtype: ``list`` for a list of int, a PyTorch dtype for a tensor, a NumPy dtype for an array;
    "pt" and "np" for a tensor and an array of int64, as transformers returns them. With None, `ids`
    is returned unchanged.

    Raises TypeError for a type that does not hold integers, InputError for an id that is too large
    for the type.
    """
    if dtype is None:
        return ids
    if dtype is list:
        return ids.tolist()
    import numpy as np

    if isinstance(dtype, str) and dtype in ("pt", "np"):
        dtype = importlib.import_module("torch" if dtype == "pt" else "numpy").int64
    if type(dtype).__module__ == "torch":
        import torch

        if not isinstance(dtype, torch.dtype) or dtype.is_floating_point or dtype.is_complex:
            raise TypeError(f"ids are integers, not {dtype}")
        _check_fit(ids, torch.iinfo(dtype).max, dtype)
        return torch.from_numpy(ids.astype(np.int64)).to(dtype)
    wanted = np.dtype(dtype)
    if wanted == ids.dtype:
        return ids
    if wanted.kind not in "iu":
        raise TypeError(f"ids are integers, not {wanted}")
    _check_fit(ids, np.iinfo(wanted).max, wanted)
    return ids.astype(wanted)


def holds(dtype: Any, number: int) -> bool:
    """Whether an id fits into a type; TypeError for a type that `as_asked` can't return."""
    if dtype is None or dtype is list:
        return True
    import numpy as np

    try:
        as_asked(np.array([number], np.uint32), dtype)
    except InputError:
        return False
    return True


def without(ids: ArrayLike, skipped: Iterable[int]) -> ArrayLike:
    """Return ids (n,) without the ids in `skipped`. Ids of another shape are returned unchanged."""
    import numpy as np

    array = np.asarray(ids)
    return array[~np.isin(array, [*skipped])] if array.ndim == 1 else ids


def shortened(text: str, most: int) -> str:
    """Return a text of at most `most` characters; a longer text is cut and ends with "..."."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


class TokenIds(dict[str, int]):
    """Ids by the text of tokens. Looking up bytes raises TypeError, since no text equals bytes."""

    def __missing__(self, token: object) -> int:
        _refuse_bytes(token)
        raise KeyError(token)

    def __contains__(self, token: object) -> bool:
        _refuse_bytes(token)
        return super().__contains__(token)

    def get(self, token: Any, default: Any = None) -> Any:
        """Return the id of a token, or a default."""
        _refuse_bytes(token)
        return super().get(token, default)


def _refuse_bytes(token: object) -> None:
    if isinstance(token, bytes):
        raise TypeError("get_vocab() has tokens as str: use get_vocab_bytes(), or token_to_id")


def _check_fit(ids: NDArray[np.uint32], largest: int, dtype: Any) -> None:
    most = int(ids.max(initial=0))
    if most > largest:
        raise InputError(f"id {most} does not fit in {dtype}, which ends at {largest}: use int64")
