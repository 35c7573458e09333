"""Ids of normalized text against those of tokenizers."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from llmgpu.backend import NUMPY, Backend, Opening
from llmgpu.bpe.encoding import encoder_gpu
from llmgpu.bpe.encoding.open import OptionalDeviceEncoder, open_encoder, prepare_vocabulary
from llmgpu.bpe.encoding.special_encoding import SpecialEncoder
from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.bpe.interchange import huggingface
from llmgpu.bpe.plain.greedy_gpu import STEPS_PER_BYTE
from llmgpu.bpe.vocabulary.building import byte_vocabulary, extend_vocabulary
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import CapacityError, VocabularyError
from llmgpu.gpu.device import Device
from llmgpu.text.corpus import corpus_from_bytes
from tests.text.test_nfc import CHARACTERS, normalize

pytestmark = pytest.mark.usefixtures("cpu_engine")


@pytest.fixture(scope="module")
def peer() -> Tokenizer:
    """A byte-level vocabulary of tokenizers with NFC and a special token."""
    from tokenizers.trainers import BpeTrainer

    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([texts(i) for i in range(60)], trainer)
    made.add_special_tokens([AddedToken("<e\u0301>", special=True, normalized=False)])
    return made


def texts(seed: int) -> str:
    generator = np.random.default_rng(seed)
    return "".join(CHARACTERS[i] for i in generator.integers(0, len(CHARACTERS), 200))


@pytest.fixture(scope="module")
def imported(peer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    path = tmp_path_factory.mktemp("nfc") / "tokenizer.json"
    peer.save(str(path))
    vocabulary = huggingface.read(path, note=lambda text: None)
    assert vocabulary.normalizer == "NFC"
    return vocabulary


def same_ids(peer: Tokenizer, vocabulary: Vocabulary, backend: Backend) -> None:
    documents = [texts(seed) for seed in range(100, 110)]
    data = [document.encode() for document in documents]
    expected = [peer.encode(document).ids for document in documents]
    pieces = list(open_encoder(vocabulary, backend, 100).encode(corpus_from_bytes(data)))
    ids = np.concatenate([piece.ids for piece in pieces])
    assert ids.tolist() == [token for ids in expected for token in ids]
    assert vocabulary.decode(ids) == b"".join(map(normalize, data))


def test_ids_are_those_of_tokenizers(peer: Tokenizer, imported: Vocabulary) -> None:
    same_ids(peer, imported, NUMPY)


def test_a_device_gives_them_too(peer: Tokenizer, imported: Vocabulary, device: Device) -> None:
    same_ids(peer, imported, Backend(device, ""))


def test_special_tokens_come_before_normalizing(peer: Tokenizer, imported: Vocabulary) -> None:
    token = "<e\u0301>"
    documents = [f"a{token}\u0301e{token}", f"{token}", f"e\u0301 {token[:-1]}"]
    encoder = open_encoder(imported, NUMPY, 50)
    plain = SpecialEncoder(encoder, imported, SpecialOptions("all"), 5)
    ids = [piece.ids for piece in plain.encode(corpus_from_bytes([d.encode() for d in documents]))]
    expected = [token for document in documents for token in peer.encode(document).ids]
    assert np.concatenate(ids).tolist() == expected


def test_a_device_is_opened_for_the_length_of_the_text(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_gpu, "SHORTER_SLICES", ((10_000, 500), (25_000, 1000)))
    for name in "SLICE_BYTES", "SOFTWARE_SLICE_BYTES":
        monkeypatch.setattr(encoder_gpu, name, 2000)
    chosen = Backend(device, "a device", is_optional=True)
    vocabulary = byte_vocabulary("gpt2", "hf")
    for nbytes, slice_bytes in (9999, 500), (10_000, 1000), (25_000, 2000), (None, 1000):
        encoder = open_encoder(vocabulary, chosen, text_bytes=nbytes)
        assert isinstance(encoder, OptionalDeviceEncoder)
        on_device = encoder._device
        assert isinstance(on_device, encoder_gpu.GpuEncoder)
        assert on_device._slot_bytes == slice_bytes
        encoder.expect(10_000)
        assert on_device._slot_bytes == 1000


def test_greedy_on_an_optional_device_falls_back_to_the_cpu(
    device: Device, logged: list[str]
) -> None:
    longest = 1 << 14
    if device.max_loop_iterations >= STEPS_PER_BYTE * longest:
        pytest.skip("this device matches tokens of any length that a test can have")
    merges = [[97, 97, 256], *([255 + k, 255 + k, 256 + k] for k in range(1, 14))]
    whole = extend_vocabulary(byte_vocabulary("none", "hf"), merges, special_tokens=[], training={})
    vocabulary = whole.with_match("greedy")
    with pytest.raises(CapacityError, match=f"longest token has {longest} bytes"):
        open_encoder(vocabulary, Backend(device, "a device"))
    chosen = Backend(device, "a device", is_optional=True)
    text = b"b" + b"a" * (longest + 3)
    [piece] = open_encoder(vocabulary, chosen).encode(corpus_from_bytes([text]))
    assert piece.ids.tolist() == [98, 269, 256, 97]
    assert any("longest token" in line and line.endswith("; using the CPU") for line in logged)


@pytest.mark.parametrize(
    ("device", "match", "are_made"),
    [("gpu", "bpe", True), ("gpu", "greedy", False), ("cpu", "bpe", False), ("auto", "bpe", True)],
)
def test_tables_of_a_device_are_made_before_it_is_open(
    device: str, match: str, are_made: bool
) -> None:
    vocabulary = byte_vocabulary("cl100k", "hf").with_match(match)
    prepare_vocabulary(vocabulary, Opening(device))
    assert (vocabulary in encoder_gpu._packed) == are_made


def test_who_opens_the_encoder_is_told_why_there_are_no_tables(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise VocabularyError("too many merges")

    monkeypatch.setattr(encoder_gpu, "pack_pairs", refuse)
    vocabulary = byte_vocabulary("cl100k", "hf")
    prepare_vocabulary(vocabulary, Opening("gpu"))
    with pytest.raises(VocabularyError, match="too many merges"):
        open_encoder(vocabulary, Backend(device, "a device"))


def test_encoders_are_kept_with_the_opening_of_their_device() -> None:
    kept, other = Opening("cpu", keeps_encoders=True), Opening("cpu")
    vocabulary = byte_vocabulary("cl100k", "hf")
    first, second = (open_encoder(vocabulary, kept.backend(), threads=2) for _ in range(2))
    assert first is second
    assert open_encoder(vocabulary, kept.backend(), threads=1) is not first
    alone, again = (open_encoder(vocabulary, other.backend(), threads=2) for _ in range(2))
    assert alone is not again
