"""Programs cut as the package regex does, or leave the text to the package."""

import importlib
from functools import lru_cache
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgpu.bpe.interchange import tekken, token_tables
from llmgpu.bpe.pretokens import custom_regex, programs
from llmgpu.bpe.pretokens.custom_regex import HostPattern, custom_pattern, splits_name
from llmgpu.bpe.pretokens.pattern import get_pattern
from llmgpu.cpu.library import CPattern, library
from llmgpu.tokenizer import Tokenizer

pytest.importorskip("regex")
pytestmark = pytest.mark.skipif(library() is None, reason="without the CPU engine")

DEEPSEEK = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
PUBLISHED = (
    DEEPSEEK,
    (tekken.EXPRESSION,),
    (r"\p{N}", token_tables.GPT2),
    (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{2}|\s+(?!\S)|\s|.",),
    (r"[\p{Lu}\p{M}]*[\p{Ll}\p{M}]+(?i:'s|'ll)?|(?=\p{N}{2})\p{N}+|(?:a(?:b|bc)c|\s*+b)\s{2,3}",),
)
SETS = ("a", " ", r"\s", r"\S", r"\p{L}", r"\p{Lu}", "[ab]", r"[^a\s]", "'", r"\.", r"\w", "[A-Z]")
AMOUNTS = ("", "", "?", "*", "+", "?+", "*+", "++", "{2}", "{1,3}", "{2,}", "{1,3}+")
TEXTS = st.lists(
    st.sampled_from(
        [*"aabAB  \n\r.'sS1\u017f\u0663\u0301\u4e2d\u3042\u3000\x00\uffff\u2581", "'ll"]
    )
    | st.characters(),
    min_size=1,
    max_size=20,
).map(lambda parts: "".join(parts).encode(errors="surrogatepass"))


def pattern_of(*expressions: str) -> HostPattern:
    return custom_pattern(splits_name(expressions))


@lru_cache(maxsize=8)
def by_instructions(expressions: tuple[str, ...]) -> CPattern | None:
    """Compile expressions without automata."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "automata", lambda *_: None)
        return programs.compiled.__wrapped__(expressions, importlib.import_module("regex"))


def check(pattern: HostPattern, text: bytes, inner: list[int]) -> None:
    found, inside = np.frombuffer(text, np.uint8), np.array(inner, np.int64)
    expected = pattern._mark_by_regex(found, inside).tolist()
    for program in pattern.compiled(), by_instructions(pattern.expressions):
        assert program is not None, pattern.name
        marks = program.mark(found, inside)
        assert marks is not None
        assert marks.tolist() == expected, (pattern.name, text)


@given(
    st.sampled_from(PUBLISHED),
    TEXTS | st.binary(min_size=1, max_size=8),
    st.lists(st.integers(1, 9), max_size=2),
)
def test_published_expressions(expressions: tuple[str, ...], text: bytes, inner: list[int]) -> None:
    check(pattern_of(*expressions), text, sorted({k for k in inner if k < len(text)}))


def random_expression(rng: Random, depth: int = 0) -> str:
    parts = []
    for _ in range(rng.randint(1, 4)):
        kind = rng.random() if depth < 2 else 1
        if kind < 0.2:
            inner = random_expression(rng, depth + 1)
            parts.append(f"{rng.choice(['(?:', '(?i:', '('])}{inner}){rng.choice(['', '?'])}")
        elif kind < 0.3:
            parts.append(f"{rng.choice(['(?=', '(?!'])}{random_expression(rng, depth + 1)})")
        else:
            parts.append(rng.choice(SETS) + rng.choice(AMOUNTS))
    return "".join(parts) + ("|" + random_expression(rng, depth) if rng.random() < 0.3 else "")


def test_random_expressions() -> None:
    rng, compiled = Random(1), 0
    letters = [*"aabAB  \n.'sS1\u017f\u0301\u4e2d", "ab", "  "]
    for _ in range(40):
        pattern = pattern_of(*(random_expression(rng) for _ in range(rng.choice([1, 2]))))
        if pattern.compiled() is not None:
            compiled += 1
            for _ in range(20):
                text = "".join(rng.choices(letters, k=rng.randint(1, 25))).encode()
                check(pattern, text, [])
    assert compiled > 10


@pytest.mark.parametrize(
    "expression",
    [
        *(
            "a*",
            "a|b*",
            "(?=a)",
            "a+?",
            "a??b",
            "(?:ab)+",
            r"\bword",
            "^a",
            "a$",
            r"(a)\1",
            "(?<=a)b",
        ),
        *(
            "[a-z&&b]",
            "[[ab]c]",
            "(?s:a)",
            "(?V1)a",
            "a{,3}",
            "(?:a|b)?+b",
            "(?>a|ab)c",
            r"\X",
            "a{1,3}?",
        ),
        "|".join(map(chr, range(0x4E00, 0x4E20))),  # 32 sets
    ],
)
def test_other_expressions_are_left_to_the_package(expression: str) -> None:
    assert pattern_of(expression).compiled() is None


@pytest.mark.parametrize("calls", ["", "ctypes"])
def test_a_text_that_takes_too_many_steps_is_left_to_the_package(
    calls: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMGPU_CALLS", calls)
    pattern = pattern_of("(?=aa)a*a*a*[bB]")  # lookahead for which there is no automaton
    program = pattern.compiled()
    assert program is not None
    text = np.frombuffer(b"a" * 120, np.uint8)
    assert program.mark(text, np.empty(0, np.int64)) is None
    marks = pattern.start_mask(text, np.empty(0, np.int64))
    assert np.flatnonzero(marks).tolist() == [0]
    # One call for a document, several documents, and a long one: all go to the package.
    merged = Tokenizer.train_from_iterator(
        ["ab"], vocab_size=256, pattern="regex:(?=aa)a*a*a*[bB]", device="cpu"
    )
    theirs = [97] * 120
    assert merged.encode("a" * 120, dtype=list) == theirs
    assert merged.encode("a" * 120, dtype=list) == theirs
    assert merged.encode_batch(["a" * 120, "b"], dtype=list) == [theirs, [98]]
    monkeypatch.setattr(custom_regex, "_match_seconds", 1e-4)
    with pytest.raises(Exception, match="use another expression, or allow more time"):
        merged.encode("a" * 120)


def test_one_call_encodes_a_text_and_a_batch() -> None:
    expressions = splits_name(DEEPSEEK)
    text = "It's 12345 \u4e2d\u6587\u3042, na\u00efve!\n\n  end\u00ff" * 30
    made = Tokenizer.train_from_iterator([text], vocab_size=300, pattern=expressions, device="cpu")
    program = get_pattern(expressions).for_engine()
    assert program.is_marked
    assert program.has_expressions
    expected = made.encode(text, dtype=list)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(custom_regex, "compiled", lambda *_: None)
        plain = Tokenizer(made.vocabulary, "cpu")
        assert plain.encode(text, dtype=list) == expected
        assert plain.encode_batch([text, "", text[5:]], dtype=list) == made.encode_batch(
            [text, "", text[5:]], dtype=list
        )


def test_the_package_is_the_one_that_is_installed() -> None:
    assert programs.compiled(("a",), importlib.import_module("regex")) is not None


def test_the_engine_has_room_for_16_expressions() -> None:
    regex = importlib.import_module("regex")
    expressions = tuple("abcdefghijklmnopq")
    assert programs.compiled(expressions[:16], regex) is not None
    assert programs.compiled(expressions, regex) is None
