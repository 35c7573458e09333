"""tokenizer.json: read, written, and compared with tokenizers itself."""

from __future__ import annotations

import dataclasses
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from llmgpu.backend import NUMPY
from llmgpu.bpe.encoding.open import open_matching_encoder
from llmgpu.bpe.encoding.special_encoding import SpecialEncoder
from llmgpu.bpe.encoding.special_options import SpecialOptions
from llmgpu.bpe.interchange import huggingface, tiktoken
from llmgpu.bpe.interchange.token_tables import HUGGINGFACE, HUGGINGFACE_NAMES, TIKTOKEN, to_text
from llmgpu.bpe.pretokens.names import PATTERNS
from llmgpu.bpe.vocabulary import building
from llmgpu.bpe.vocabulary.file import ChatTemplate
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError, OutputError, VocabularyError
from llmgpu.text.corpus import corpus_from_bytes
from llmgpu.tokenizer import Tokenizer as LlmgpuTokenizer
from tests.bpe.interchange.samples import (
    assert_same_ids,
    assert_same_meaning,
    cl100k_path,
    random_ranks,
    rank_vocabulary,
    texts,
    train_peer,
    trained,
)
from tests.reference.bpe import pre_tokens
from tests.reference.encoding import bpe_encode


@pytest.fixture
def notes() -> list[str]:
    return []


class TestRead:
    def test_a_tokenizer_trained_there(self, tmp_path: Path, notes: list[str]) -> None:
        peer = train_peer()
        peer.save(str(tmp_path / "t.json"))
        read = huggingface.read(tmp_path / "t.json", note=notes.append)
        assert (read.pattern, read.match, read.ignore_merges) == ("gpt2", "bpe", False)
        assert read.special_tokens == {"<|endoftext|>": 0, "<pad>": 1}
        assert (read.size, read.normalizer, notes) == (peer.get_vocab_size(), None, [])
        assert_same_ids(read, peer)
        huggingface.write(read, tmp_path / "back.json")
        assert_same_meaning(huggingface.read(tmp_path / "back.json"), read)
        assert_same_ids(read, Tokenizer.from_file(str(tmp_path / "back.json")))

    def test_merges_as_texts_and_an_old_model(self, tmp_path: Path) -> None:
        peer = train_peer()
        content = json.loads(peer.to_str())
        content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
        del content["model"]["type"], content["model"]["ignore_merges"]
        (tmp_path / "t.json").write_text(json.dumps(content))
        assert_same_ids(huggingface.read(tmp_path / "t.json"), peer)

    @pytest.mark.parametrize(
        "normal", [normalizers.NFC(), normalizers.Sequence([normalizers.NFC()])]
    )
    def test_nfc(self, tmp_path: Path, normal: Any) -> None:
        peer = train_peer()
        peer.normalizer = normal
        peer.save(str(tmp_path / "t.json"))
        read = huggingface.read(tmp_path / "t.json")
        assert read.normalizer == "NFC"
        assert_same_ids(read, peer)
        huggingface.write(read, tmp_path / "back.json")
        assert_same_ids(read, Tokenizer.from_file(str(tmp_path / "back.json")))

    def test_ignore_merges(self, tmp_path: Path) -> None:
        peer = train_peer(ignore_merges=True)
        content = json.loads(peer.to_str())
        del content["model"]["merges"][::3]  # some tokens are made by no merge now
        (tmp_path / "t.json").write_text(json.dumps(content))
        read = huggingface.read(tmp_path / "t.json")
        assert read.ignore_merges
        assert_same_ids(read, Tokenizer.from_file(str(tmp_path / "t.json")))

    def test_unknown_token(self, tmp_path: Path, notes: list[str]) -> None:
        peer = Tokenizer(
            models.BPE({"<unk>": 0, "a": 1, "b": 2, "ab": 3}, [("a", "b")], unk_token="<unk>")
        )
        peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        peer.add_special_tokens(["<unk>"])
        peer.save(str(tmp_path / "t.json"))
        read = huggingface.read(tmp_path / "t.json", note=notes.append)
        assert (read.unknown_token, notes) == (0, [])
        assert_same_ids(read, peer)
        huggingface.write(read, tmp_path / "back.json")
        assert_same_meaning(huggingface.read(tmp_path / "back.json"), read)

    def test_bytes_without_a_token(self, tmp_path: Path, notes: list[str]) -> None:
        peer = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
        peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        peer.save(str(tmp_path / "t.json"))
        assert huggingface.read(tmp_path / "t.json", note=notes.append).missing_bytes
        assert len(notes) == 1 and "'0x00'" in notes[0] and "251 more" in notes[0]

    def test_what_is_not_kept_is_noted(self, tmp_path: Path, notes: list[str]) -> None:
        peer = train_peer()
        peer.add_tokens([AddedToken("   ", special=False), AddedToken("<m>", lstrip=True)])
        peer.enable_truncation(10)
        peer.post_processor = processors.TemplateProcessing(
            single="<pad> $A", special_tokens=[("<pad>", 1)]
        )
        peer.save(str(tmp_path / "t.json"))
        read = huggingface.read(tmp_path / "t.json", note=notes.append)
        assert read.special_tokens == {"<|endoftext|>": 0, "<pad>": 1, "   ": 500, "<m>": 501}
        assert [
            next(w for w in ("Template", "not special", "truncation") if w in note)
            for note in notes
        ] == ["Template", "truncation", "not special"]
        assert read.lstrip_tokens == (501,)


class TestPatterns:
    @pytest.mark.parametrize("name", sorted(set(HUGGINGFACE) & set(PATTERNS)))
    @pytest.mark.parametrize("how", [("isolated", False), ("removed", True)])
    def test_a_split_is_a_pattern(self, tmp_path: Path, name: str, how: tuple[str, bool]) -> None:
        peer = train_peer()
        peer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(HUGGINGFACE[name]), how[0], invert=how[1]),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        peer.save(str(tmp_path / "t.json"))
        read = huggingface.read(tmp_path / "t.json")
        assert read.pattern == name
        assert_same_ids(read, peer)

    @pytest.mark.parametrize("name", sorted(set(HUGGINGFACE) & set(PATTERNS)))
    def test_spellings_cut_alike(self, name: str) -> None:
        split = pre_tokenizers.Split(Regex(HUGGINGFACE[name]), "isolated")
        for text in texts(6, 400):
            pieces = [piece.encode() for piece, _ in split.pre_tokenize_str(text)]
            assert pieces == pre_tokens(text.encode(), name), text

    @pytest.mark.parametrize(
        "expression",
        [
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
            r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
            TIKTOKEN["gpt2"],
        ],
    )
    def test_other_spellings(self, expression: str) -> None:
        name = HUGGINGFACE_NAMES[expression]
        split = pre_tokenizers.Split(Regex(expression), "isolated")
        for text in texts(7, 400):
            pieces = [piece.encode() for piece, _ in split.pre_tokenize_str(text)]
            assert pieces == pre_tokens(text.encode(), name), text

    def test_every_pattern_but_none_has_a_spelling(self) -> None:
        assert set(PATTERNS) - set(HUGGINGFACE) == {"none"}

    def test_openai_spelling_of_cl100k_means_something_else_there(self) -> None:
        # Oniguruma repeats {1,3} where other engines make it possessive.
        split = pre_tokenizers.Split(Regex(r"\p{N}{1,3}+"), "isolated")
        assert split.pre_tokenize_str("1234567") == [("1234567", (0, 7))]
        assert TIKTOKEN["cl100k"] not in HUGGINGFACE_NAMES


class TestWrite:
    @pytest.mark.parametrize("pattern", PATTERNS)
    def test_trained_here(self, tmp_path: Path, pattern: str) -> None:
        vocabulary = trained(pattern)
        huggingface.write(vocabulary, tmp_path / "t.json")
        peer = Tokenizer.from_file(str(tmp_path / "t.json"))
        assert_same_ids(vocabulary, peer)
        assert peer.encode("a<|endoftext|>").ids == [97, vocabulary.size - 1]
        assert peer.decode([97, 98]) == "ab"
        read = huggingface.read(tmp_path / "t.json")
        assert_same_meaning(read, vocabulary)
        assert (read.merges == vocabulary.merges).all()

    @pytest.mark.parametrize("pattern", PATTERNS)
    @pytest.mark.parametrize("seed", range(4))
    def test_any_ranks(self, tmp_path: Path, pattern: str, seed: int) -> None:
        special = {"<|x|>": 600, "<|y|>": 610}
        vocabulary = rank_vocabulary(random_ranks(seed), pattern, special)
        notes: list[str] = []
        huggingface.write(vocabulary, tmp_path / "t.json", note=notes.append)
        assert "456" not in notes[0] and "458 of 611 ids" in notes[0]
        peer = Tokenizer.from_file(str(tmp_path / "t.json"))
        assert_same_ids(vocabulary, peer, 100)
        assert peer.encode("<|y|> <|x|>").ids[::2] == [610, 600]
        read = huggingface.read(tmp_path / "t.json")
        for text in texts(seed, 50):
            assert bpe_encode(read, text.encode()) == bpe_encode(vocabulary, text.encode())

    @pytest.mark.slow
    def test_cl100k(self, tmp_path: Path) -> None:
        pattern = "cl100k" if "cl100k" in PATTERNS else "gpt2"
        vocabulary = tiktoken.read(cl100k_path(), pattern=pattern)
        huggingface.write(vocabulary, tmp_path / "t.json")
        peer = Tokenizer.from_file(str(tmp_path / "t.json"))
        text = "".join(texts(2, 300)) + Path(building.__file__).read_text()
        assert bpe_encode(vocabulary, text.encode()) == peer.encode(text).ids
        assert peer.encode("<|endofprompt|>").ids == [100276]
        tiktoken.write(huggingface.read(tmp_path / "t.json"), tmp_path / "r")
        assert (tmp_path / "r").read_bytes() == cl100k_path().read_bytes()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"match": "greedy"}, "greedy matching"),
            ({"pattern": "own", "expression": "x"}, "'own' has no spelling"),
            ({"special_tokens": {"\u0100": 399}}, "ids 0 and 399 would both be written"),
        ],
    )
    def test_refused(self, tmp_path: Path, change: dict[str, Any], message: str) -> None:
        made = trained()
        last = "".join(change.get("special_tokens", made.special_tokens)).encode()
        unfit = dataclasses.replace(made, tokens=(*made.tokens[:-1], last), **change)
        with pytest.raises(VocabularyError, match=message):
            huggingface.write(unfit, tmp_path / "t.json")
        assert not list(tmp_path.iterdir())

    def test_a_file_that_cannot_be_written(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError):
            huggingface.write(trained(), tmp_path / "missing" / "t.json")


class TestNormalizedAddedTokens:
    """Added tokens in any combination of flags, against the library."""

    TEXTS = ("<a>", "<a>b", "a>b", "\u2126", "\u03a9", "e\u0301", "\u00e9", ">", "\u0338x", "ab<")
    PARTS = (*TEXTS, "a", "b", "<", "\u0301", "\u0338", "e", " ", "\u1100", "\u1161")

    def describe(self, rng: random.Random) -> dict[str, Any]:
        """Return a tokenizer.json of the bytes, a few merges and random added tokens."""
        alphabet = {to_text(bytes([value])): value for value in range(256)}
        merges = rng.sample([("a", "b"), (">", "b"), ("<", "a"), ("Ã", "©"), ("Ġ", "a")], 3)
        ids = {**alphabet, **{left + right: 256 + k for k, (left, right) in enumerate(merges)}}
        added: list[dict[str, Any]] = []
        normal: set[str] = set()
        for text in rng.sample(self.TEXTS, rng.randint(1, 6)):
            same = normalizers.NFC().normalize_str(text)
            if text in alphabet or same in normal:
                continue  # a byte of the model, or the text of another one
            normal.add(same)
            flags = {"special": rng.random() < 0.5, "normalized": rng.random() < 0.6}
            flags |= dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
            added.append({"id": len(ids) + len(added), "content": text, **flags})
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        return {
            "version": "1.0",
            "added_tokens": added,
            "normalizer": rng.choice([None, {"type": "NFC"}]),
            "pre_tokenizer": byte_level | {"use_regex": rng.random() < 0.5},
            "decoder": byte_level,
            "model": {"type": "BPE", "vocab": ids, "merges": [" ".join(pair) for pair in merges]},
        }

    def check(self, path: Path, rng: random.Random, count: int) -> None:
        path.write_text(json.dumps(self.describe(rng)))
        peer, read = Tokenizer.from_file(str(path)), huggingface.read(path)
        huggingface.write(read, path, force=True)
        back, again = Tokenizer.from_file(str(path)), huggingface.read(path)
        assert (again.fingerprint, again.special_tokens) == (read.fingerprint, read.special_tokens)
        assert Vocabulary.from_bytes(read.to_bytes()).normalized_tokens == read.normalized_tokens
        inner = open_matching_encoder(read, NUMPY, rng.choice([1, 5, 1000]))
        cut = rng.choice([1, 2, 7, 100])
        encoder = SpecialEncoder(inner, read, SpecialOptions(["all"]), cut)
        texts = ["".join(rng.choices(self.PARTS, k=rng.randrange(9))) for _ in range(count)]
        starts, ids = [0], []
        for piece in encoder.encode(corpus_from_bytes([text.encode() for text in texts])):
            starts += (piece.document_starts + len(ids)).tolist()
            ids += piece.ids.tolist()
        ours = [ids[start:end] for start, end in pairwise([*starts[1:], len(ids)])]
        assert ours == [peer.encode(text, add_special_tokens=False).ids for text in texts]
        assert ours == [back.encode(text, add_special_tokens=False).ids for text in texts]
        at_once = LlmgpuTokenizer(read, "cpu")
        assert ours == [at_once.encode(text, dtype=list, allowed_special="all") for text in texts]

    def test_ids_are_those_of_the_library(self, tmp_path: Path) -> None:
        rng = random.Random(15)
        for _ in range(60):
            self.check(tmp_path / "t.json", rng, 30)

    @pytest.mark.slow
    def test_many_combinations(self, tmp_path: Path) -> None:
        rng = random.Random(16)
        for _ in range(400):
            self.check(tmp_path / "t.json", rng, 40)

    @pytest.mark.parametrize(
        ("added", "message"),
        [
            (["\u00e9"], "the added token 'é' is also the byte 0xe9 of the model"),
            (["<a>", "c"], "the added token 'c' is also the byte 0x63 of the model"),
            (["\u2126", "\u03a9"], "the same text once it is normalized"),
        ],
    )
    def test_refused(self, tmp_path: Path, added: list[str], message: str) -> None:
        content = self.describe(random.Random(1)) | {"normalizer": {"type": "NFC"}}
        ids = content["model"]["vocab"]
        content["added_tokens"] = [
            {"id": ids.get(text, len(ids) + k), "content": text, "normalized": True}
            for k, text in enumerate(added)
        ]
        (tmp_path / "t.json").write_text(json.dumps(content))
        with pytest.raises(VocabularyError, match=message):
            huggingface.read(tmp_path / "t.json")

    def test_disallowed_in_normalized_text(self, tmp_path: Path) -> None:
        content = self.describe(random.Random(1)) | {"normalizer": {"type": "NFC"}}
        flags = {"special": True, "normalized": True}
        content["added_tokens"] = [{"id": 259, "content": "\u2126", **flags}]
        (tmp_path / "t.json").write_text(json.dumps(content))
        tokenizer = LlmgpuTokenizer(huggingface.read(tmp_path / "t.json"), device="cpu")
        for text in ("a\u2126", "a\u03a9"):
            assert tokenizer.encode(text, allowed_special="all").tolist() == [97, 259]
            assert tokenizer.encode(text).tolist() == [97, 206, 169]
            with pytest.raises(InputError, match=r"special token .* is disallowed"):
                tokenizer.encode(text, disallowed_special="all")


class TestNormalizers:
    """Lowercase, Prepend, Replace and Strip, with added tokens before and after them."""

    STEPS = (
        {"type": "Lowercase"},
        {"type": "NFC"},
        {"type": "Prepend", "prepend": "A\u0301"},
        {"type": "Replace", "pattern": {"String": "ab"}, "content": "B"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "_"},
        {"type": "Strip", "strip_left": True, "strip_right": False},
        {"type": "Strip", "strip_left": True, "strip_right": True},
    )

    @pytest.mark.parametrize("seed", range(12))
    def test_ids_are_those_of_tokenizers(self, tmp_path: Path, seed: int) -> None:
        rng = random.Random(seed)
        content = huggingface.describe(trained())
        steps = rng.sample(self.STEPS, rng.randrange(1, 4))
        content["normalizer"] = {"type": "Sequence", "normalizers": steps}
        for number, text in enumerate(("<X>", "aB", " b "), 400):
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
            flags |= {"special": True, "normalized": rng.random() < 0.5}
            content["added_tokens"].append({"id": number, "content": text, **flags})
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        theirs = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        read = huggingface.read(tmp_path / "tokenizer.json")
        ours = LlmgpuTokenizer(read, device="cpu")
        alphabet = ["a", "b", "B", " ", "<X>", "<x>", "\u00e9", "e\u0301", "\u0130", "\n", "\u00a0"]
        texts = ["".join(rng.choices(alphabet, k=rng.randrange(15))) for _ in range(300)]
        expected = [theirs.encode(text, add_special_tokens=False).ids for text in texts]
        found = ours.encode_batch(texts, allowed_special="all", dtype=list)
        for text, ids, wanted in zip(texts, found, expected, strict=True):
            assert ids == wanted, (steps, text)
            assert ours.encode(text, allowed_special="all", dtype=list) == wanted, (steps, text)
        huggingface.write(read, tmp_path, force=True)
        again = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        assert again.encode("Ab a<X>B ").ids == theirs.encode("Ab a<X>B ").ids

    def test_an_added_token_that_becomes_empty_is_refused(self, tmp_path: Path) -> None:
        content = huggingface.describe(trained())
        content["normalizer"] = self.STEPS[-1]
        flags = {"special": True, "normalized": True}
        content["added_tokens"].append({"id": 400, "content": " ", **flags})
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        with pytest.raises(VocabularyError, match="the added token ' ' is empty once"):
            huggingface.read(tmp_path / "tokenizer.json")


class TestFolder:
    def test_auto_tokenizer_opens_it_with_its_end_of_text(self, tmp_path: Path) -> None:
        transformers = pytest.importorskip("transformers")
        huggingface.write(trained(), f"{tmp_path}/new/")
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
        assert (theirs.eos_token, theirs.eos_token_id) == ("<|endoftext|>", 399)
        for text in texts(8, 50):
            assert theirs.encode(text) == bpe_encode(trained(), text.encode())

    def test_what_it_holds(self, tmp_path: Path) -> None:
        huggingface.write(trained(), tmp_path)
        assert huggingface.read(tmp_path / "tokenizer.json").tokens == trained().tokens
        described = json.loads((tmp_path / "special_tokens_map.json").read_bytes())
        assert described == {"eos_token": "<|endoftext|>"}
        described |= json.loads((tmp_path / "tokenizer_config.json").read_bytes())
        assert described["tokenizer_class"] == "PreTrainedTokenizerFast"
        huggingface.write(dataclasses.replace(trained(), special_tokens={}), tmp_path)
        assert json.loads((tmp_path / "special_tokens_map.json").read_bytes()) == {}

    def test_the_chat_template_is_kept(self, tmp_path: Path) -> None:
        chat = ChatTemplate("{{ bos_token }}{{ messages }}", {"bos_token": "<s>", "eos_token": "|"})
        before = dataclasses.replace(trained(), chat=chat)
        notes: list[str] = []
        huggingface.write(before, tmp_path / "tokenizer.json", note=notes.append)
        assert notes == ["the chat template is not in a tokenizer.json: export to a folder"]
        huggingface.write(before, tmp_path)
        kept = huggingface.read(tmp_path / "tokenizer.json")
        assert kept.chat == chat and kept.fingerprint == before.fingerprint
        kept.save(tmp_path / "v.bin")
        assert Vocabulary.load(tmp_path / "v.bin").chat == chat
        assert Vocabulary.load(tmp_path / "v.bin").training == {"imported_from": "huggingface"}

    @pytest.mark.parametrize(
        ("name", "content", "reason"),
        [
            (
                "tokenizer_config.json",
                "[1]",
                "tokenizer_config.json: the file is not a JSON object",
            ),
            ("tokenizer_config.json", "{", "tokenizer_config.json: not valid JSON"),
            ("tokenizer_config.json", '{"chat_template": "\\ud800"}', "not valid Unicode"),
            ("chat_template.jinja", "x" * 65537, "has 65537 bytes, but the limit is 65536"),
            ("chat_template.jinja", "\udcff", "chat_template.jinja: not UTF-8 at byte 0"),
        ],
    )
    def test_a_chat_template_that_can_not_be_kept_is_noted(
        self, tmp_path: Path, name: str, content: str, reason: str
    ) -> None:
        huggingface.write(trained(), tmp_path)
        (tmp_path / name).write_text(content, errors="surrogateescape")
        notes: list[str] = []
        read = huggingface.read(tmp_path / "tokenizer.json", note=notes.append)
        assert read.chat is None and len(notes) == 1
        assert notes[0].startswith("the chat template is skipped: ") and reason in notes[0]

    def test_transformers_renders_the_exported_template(self, tmp_path: Path) -> None:
        transformers = pytest.importorskip("transformers")
        chat = ChatTemplate(
            "{% for m in messages %}{{ bos_token }}{{ m.content }}{{ eos_token }}{% endfor %}",
            {"bos_token": "<s>", "eos_token": "<|endoftext|>"},
        )
        huggingface.write(dataclasses.replace(trained(), chat=chat), tmp_path)
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        text = theirs.apply_chat_template(messages, tokenize=False)
        assert text == "<s>a<|endoftext|><s>b<|endoftext|>"

    @pytest.mark.parametrize(
        "name", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]
    )
    def test_nothing_else_is_replaced(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_text("notes")
        with pytest.raises(OutputError, match=f"{name} is text, and"):
            huggingface.write(trained(), tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [name]
        huggingface.write(trained(), tmp_path, force=True)

    def test_a_folder_that_can_not_be_made(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match=r"can't write .*/missing/new/"):
            huggingface.write(trained(), f"{tmp_path}/missing/new/")


def test_names_of_tokens_are_kept_for_a_template_that_is_given_later(tmp_path: Path) -> None:
    before, folder = trained(), tmp_path / "model"
    folder.mkdir()
    huggingface.write(before, folder)
    names = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    read = huggingface.read(folder / "tokenizer.json")
    read.save(tmp_path / "v.bin")
    kept = Vocabulary.load(tmp_path / "v.bin")
    assert kept.fingerprint == before.fingerprint and not kept.chat
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    messages = [{"role": "user", "content": "hi"}]
    text = LlmgpuTokenizer(kept).render_chat_template(messages, chat_template=template)
    assert text == "<s>hi</s>"
