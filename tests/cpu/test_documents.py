"""The engine prepares documents as Python does: normalizing, and added tokens in all texts."""

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from llmgpu.bpe.encoding.encoder_c import make_c_vocabulary, open_coder
from llmgpu.bpe.encoding.special_options import NO_SPECIAL_TOKENS
from llmgpu.bpe.interchange import sentencepiece
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.cpu.extension import extension
from llmgpu.tokenizer import Tokenizer
from tests.bpe.interchange.models import model, random_pieces, random_text, user_defined
from tests.bpe.interchange.test_piece_files_reading import CASES, REPLACE, added, content, write
from tests.reference.pieces import MARK

pytestmark = pytest.mark.skipif(extension() is None, reason="without the extension module")

TOKENS = ["ab", "abab", "aba", "\n", "\n\n", "\n\n\n\n", "b" + MARK, "é", "\U0001f600x", MARK * 2]
TEXTS = [
    *TOKENS,
    "\u2580",
    "\xe2",
    "<s>",
    "\u0301",
    "\u1100\u1161",
    "\uac00\u11a8",
    "e\u0301",
    "\ufb01",
]


def check(vocabulary: Vocabulary, rng: Random, *, is_always: bool) -> None:
    """Check that a coder of the extension module gives the same ids as `encode_documents`.

    is_always: whether the module must encode every text.
    """
    coder = open_coder(vocabulary, 1 << 30)
    encoders = Tokenizer(vocabulary, "cpu")._current_encoders()
    texts = [random_text(rng, TEXTS).encode() for _ in range(150)]
    texts += [text[:k] + rng.randbytes(2) + text[k:] for k, text in enumerate(texts[:40])]
    texts += ["".join(random_text(rng, TEXTS) for _ in range(300)).encode(), b"", b" ", b"\xe2\x96"]
    found = 0
    for text in texts:
        ids = coder.encode(text)
        expected = encoders.encode_documents([text], NO_SPECIAL_TOKENS)[0]
        if ids is not None:
            found += 1
            assert ids.tolist() == expected.tolist(), text
    assert found == len(texts) if is_always else 20 < found < len(texts)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(2))
def test_files_of_tokenizers(name: str, seed: int, tmp_path: Path) -> None:
    vocabulary = Tokenizer.load(write(tmp_path, CASES[name](seed))).vocabulary
    is_prepared = name not in ("normalized", "metaspace", "llama, new")
    assert make_c_vocabulary(vocabulary).prepares == is_prepared
    assert (open_coder(vocabulary) is None) != is_prepared
    if is_prepared:
        check(vocabulary, Random(seed), is_always=True)


@pytest.mark.parametrize("seed", range(4))
def test_added_tokens(seed: int, tmp_path: Path) -> None:
    made = content(seed, REPLACE)
    vocab = made["model"]["vocab"]
    for text in ("\n", "é"):  # a single character must have a token
        vocab.setdefault(text, len(vocab))
    following = len(vocab)
    for text in Random(seed).sample(TOKENS, 6):
        made["added_tokens"].append(added(text, vocab.get(text, following), special=False))
        following += text not in vocab
    check(Tokenizer.load(write(tmp_path, made)).vocabulary, Random(seed), is_always=True)


@pytest.mark.parametrize("prefix", [0, 1])
def test_user_defined_symbols(prefix: int, tmp_path: Path) -> None:
    pieces = random_pieces(prefix, has_bytes=True)
    texts = {text for text, _, _ in pieces}
    symbols = user_defined(*(text for text in TOKENS if text not in texts))
    path = tmp_path / "tokenizer.model"
    path.write_bytes(model([*pieces, *symbols], normalizer={3: prefix}))
    vocabulary = sentencepiece.read(path)
    assert make_c_vocabulary(vocabulary).prepares
    check(vocabulary, Random(prefix), is_always=True)


def test_form_nfc() -> None:
    trained = Tokenizer.train_from_iterator(
        ["abc é\u0301 \uac00 <|x|>"], vocab_size=259, special_tokens=["<|x|>"], device="cpu"
    )
    vocabulary = replace(trained.vocabulary, normalizer="NFC")
    assert make_c_vocabulary(vocabulary).prepares
    check(vocabulary, Random(1), is_always=False)
    ours = Tokenizer(vocabulary, "cpu")
    assert ours.encode("e\u0301", dtype=list) == ours.encode("\u00e9", dtype=list)
    assert ours.encode_batch(["e\u0301", "a"], dtype=list)[0] == ours.encode("\u00e9", dtype=list)
    ids, spans = ours.encode_with_offsets("xe\u0301y")
    assert ours.decode(ids) == "x\u00e9y"
    assert spans[-1].tolist() == [2, 3]


def test_python_decodes_pieces(tmp_path: Path) -> None:
    ours = Tokenizer.load(write(tmp_path, CASES["llama 2"](1)), device="cpu")
    ids = ours.encode("ab a\n")
    assert ours._coder is not None
    text = ours.decode(ids)
    assert text == "ab a\n"  # without the space of the prefix
    assert ours.decode_batch([ids, ids[:0]]) == [text, ""]
    assert "".join(ours.decode_stream(ids.tolist())) == text
    assert ours.decode_bytes(ids) == text.encode()
    assert ours.encode_batch(["ab a\n", "b"], dtype=list)[0] == ids.tolist()
    offsets = ours.encode_with_offsets("ab a\n")[1]
    assert np.diff(offsets, axis=0).min() >= 0
    lone = Tokenizer(ours.vocabulary, "cpu")
    for token in ("<s>", "a", "<0x41>", " ", MARK):
        found = ours.vocabulary.special_tokens.get(token)
        assert ours.token_to_id(token) == lone.token_to_id(token)
        assert found is None or ours.token_to_id(token) == found
