"""`llmgpu.as_transformers`: every call gives what the tokenizer of transformers gives."""

from __future__ import annotations

import copy
import json
import logging
import multiprocessing
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import llmgpu
from llmgpu.errors import VocabularyError
from llmgpu.tokenizer import exact_backend
from tests.cli.conftest import ROOT
from tests.conftest import examples
from tests.harness.transformers_calls import (
    encodings_of,
    in_transformers,
    library_tokenizers,
    outcome,
    plain,
    random_call,
    random_decoding,
    random_text,
)

transformers = pytest.importorskip("transformers")
pytest.importorskip("torch")
tokenizers = pytest.importorskip("tokenizers")

CHAT = "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>{% endfor %}"
MARKED = (
    "{% for m in messages %}<s>{% generation %}{{ m.content }}{% endgeneration %}</s>{% endfor %}"
)
MESSAGES = [{"role": "user", "content": "lower  than"}, {"role": "assistant", "content": "low é"}]
NAMED = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "chat_template": CHAT}


@pytest.fixture(scope="module", autouse=True)
def silent() -> Iterator[None]:
    """Warnings of transformers about long texts are compared nowhere else than in their state."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True)
def cut_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short texts are cut by the package regex, too."""
    monkeypatch.setattr(exact_backend, "FEW_CHARACTERS", 0)


def pair(name: str = "template", **named: Any) -> tuple[Any, Any]:
    """Return a tokenizer of transformers, and the same in llmgpu."""
    theirs = in_transformers(dict(library_tokenizers())[name], **(NAMED | named))
    return theirs, llmgpu.as_transformers(theirs)


@pytest.fixture
def both() -> tuple[Any, Any]:
    return pair()


def same(call: Callable[[Any], Any], theirs: Any, ours: Any) -> Any:
    """Require equal results, warnings and settings of the library; return the result."""

    def inspected(value: Any) -> Any:
        return plain(value), encodings_of(value) if hasattr(value, "encodings") else None

    expected = outcome(lambda: call(theirs), inspected)
    assert outcome(lambda: call(ours), inspected) == expected
    settings = [
        (b.truncation, b.padding, b.encode_special_tokens)
        for b in (theirs._tokenizer, ours.__dict__["_watched"].library)
    ]
    assert settings[0] == settings[1]
    assert theirs.deprecation_warnings == ours.deprecation_warnings
    return expected


@pytest.mark.parametrize("name", [name for name, _ in library_tokenizers()])
def test_random_calls(name: str) -> None:
    theirs, ours = pair(name, model_max_length=9 if name == "template" else None)
    tokens = [token.content for token in theirs.added_tokens_decoder.values()]
    rng = random.Random(name)
    for number in range(examples(400)):
        if number % 20 == 0:
            sides = rng.choices(["left", "right"], k=2)
            for each in (theirs, ours):
                each.padding_side, each.truncation_side = sides
                each.split_special_tokens = number % 60 == 20
        if number % 3:
            same(random_call(rng, tokens), theirs, ours)
        else:
            same(random_decoding(rng, len(theirs)), theirs, ours)


def test_random_calls_with_a_published_vocabulary() -> None:
    theirs = llmgpu.Tokenizer.load("cl100k", "cpu").as_hf()
    theirs.pad_token = theirs.eos_token
    ours = llmgpu.as_transformers(theirs)
    rng = random.Random(5)
    for _ in range(examples(400)):
        same(random_call(rng, ["<|endoftext|>", "<|fim_prefix|>"]), theirs, ours)
        same(random_decoding(rng, len(theirs)), theirs, ours)


@pytest.mark.parametrize("name", ["own", "string", "digits"])
def test_each_character(name: str) -> None:
    """The package regex, which cuts here, may follow another version of Unicode."""
    theirs, ours = pair(name)
    step = 1 if examples(30) >= 30 else 61
    changed = [0x295, 0x558, 0x88F, 0xA7CE, 0x11DE0, 0x16EBB]  # in later versions of Unicode
    codes = [*changed, *(c for c in range(1, 0x30000, step) if not 0xD800 <= c < 0xE000)]
    texts = [
        "".join(f"a{chr(c)}{chr(c)}12{chr(c)}12" for c in codes[k : k + 16])
        for k in range(0, len(codes), 16)
    ]
    expected, found = theirs(texts)["input_ids"], [ours(text)["input_ids"] for text in texts]
    assert found == expected


def test_short_texts_are_left_to_the_library_that_cuts_them_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exact_backend, "FEW_CHARACTERS", 100)
    _, ours = pair("own")
    monkeypatch.setattr(
        transformers.TokenizersBackend, "_encode_plus", lambda *given, **named: None
    )
    for texts in ("low" * 40, ["low" * 20] * 2):
        assert ours(texts)["input_ids"]
    for texts in ("low", ["low"] * 2):
        assert ours(texts) is None


def test_hot_methods_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = pair()
    calls: list[Callable[[Any], Any]] = [
        lambda t: t("low <s>er é"),
        lambda t: t(["low", "lowest"], padding=True, truncation=True, max_length=4),
        lambda t: t(["low", "newer"], padding="max_length", max_length=9, return_tensors="pt"),
        lambda t: t("low", return_token_type_ids=True, return_special_tokens_mask=True),
        lambda t: t("low</s>", split_special_tokens=True, return_tensors="np"),
        lambda t: t.encode("low", add_special_tokens=False),
        lambda t: t.apply_chat_template(MESSAGES, add_generation_prompt=True),
        lambda t: t.decode([5, 6, 7, 0], skip_special_tokens=True),
        lambda t: t.batch_decode([[5, 6], [7]], clean_up_tokenization_spaces=False),
        lambda t: t.convert_ids_to_tokens([5, 6, 0], skip_special_tokens=True),
        lambda t: t.pad_token_id,
    ]
    expected = [outcome(lambda call=call: call(theirs)) for call in calls]

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("transformers' own code ran")

    for name in ("_encode_plus", "_decode", "convert_ids_to_tokens"):
        monkeypatch.setattr(transformers.TokenizersBackend, name, refuse)
    assert [outcome(lambda call=call: call(ours)) for call in calls] == expected


CHANGES: list[Callable[[Any], Any]] = [
    lambda t: t.add_tokens(["newest", "é l"]),
    lambda t: t.add_tokens(tokenizers.AddedToken("low", lstrip=True)),
    lambda t: t.add_special_tokens({"additional_special_tokens": ["<new>", "lower"]}),
    lambda t: t.add_special_tokens({"pad_token": "[PAD]"}),
    lambda t: setattr(t, "pad_token", "</s>"),
    lambda t: setattr(t, "eos_token", "<pad>"),
    lambda t: setattr(t, "add_bos_token", True),
    lambda t: setattr(t, "model_max_length", 5),
    lambda t: setattr(t, "padding_side", "left"),
    lambda t: setattr(t, "truncation_side", "left"),
    lambda t: setattr(t, "model_input_names", ["input_ids", "token_type_ids"]),
    lambda t: setattr(t, "split_special_tokens", True),
    lambda t: setattr(t, "clean_up_tokenization_spaces", True),
    lambda t: setattr(t._tokenizer, "normalizer", tokenizers.normalizers.Lowercase()),
    lambda t: setattr(t.backend_tokenizer, "normalizer", tokenizers.normalizers.NFKC()),
    lambda t: setattr(t.backend_tokenizer, "post_processor", tokenizers.processors.ByteLevel()),
    lambda t: setattr(t.backend_tokenizer.model, "dropout", 1.0),
    lambda t: setattr(t.backend_tokenizer.pre_tokenizer, "add_prefix_space", True),
    lambda t: setattr(t.backend_tokenizer, "decoder", tokenizers.decoders.Fuse()),
    lambda t: t.backend_tokenizer.enable_truncation(3),
    lambda t: t.backend_tokenizer.add_special_tokens(["lowest"]),
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_later_changes_are_followed(number: int) -> None:
    theirs, ours = pair("NFC")
    held = [copy.copy(ours), copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))]
    texts = ["NEWEST newest<new>\u00e9 low lowest", "<s>[PAD]e\u0301 lower</s>"]
    calls: list[Callable[[Any], Any]] = [
        lambda t: t(texts, padding=True, truncation=True, return_special_tokens_mask=True),
        lambda t: t(texts[0]),
        lambda t: t.decode(range(len(t))),
        lambda t: t.decode([*range(len(t))], skip_special_tokens=True),
        lambda t: t.convert_ids_to_tokens([*range(len(t))], skip_special_tokens=True),
        lambda t: (len(t), sorted(t.get_vocab()), t.all_special_ids, t.pad_token_id, t.vocab_size),
    ]
    before = ours(texts)
    expected = outcome(lambda: before, encodings_of)
    lazy = ours(texts)
    untouched = [outcome(lambda call=call: call(theirs)) for call in calls]
    for each in (theirs, ours):
        CHANGES[number](each)
    for call in calls:
        same(call, theirs, ours)
    # The encodings of an earlier call are those of that time; copies go on as copies do.
    assert outcome(lambda: lazy, encodings_of) == expected
    for made in held[1:]:
        assert [outcome(lambda call=call, made=made: call(made)) for call in calls] == untouched
    for call in calls:
        shared = copy.copy(theirs), copy.copy(ours)
        same(call, *shared)


def test_a_backend_that_somebody_holds(both: tuple[Any, Any]) -> None:
    held = [each.backend_tokenizer for each in both]
    same(lambda t: t("newest"), *both)
    for backend in held:
        backend.add_tokens(["newest"])
    same(lambda t: t("newest"), *both)
    for backend in held:
        backend.no_padding()
        backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    same(lambda t: t("new est"), *both)


def test_copies_and_files(both: tuple[Any, Any], tmp_path: Path) -> None:
    theirs, ours = both
    assert isinstance(ours, type(theirs)) and type(ours) is not type(theirs)
    names = ("__name__", "__qualname__", "__module__", "__doc__")
    assert [getattr(type(ours), n) for n in names] == [getattr(type(theirs), n) for n in names]
    for made in (copy.copy(ours), copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert type(made) is type(ours)
        same(lambda t: t(["low", "<s>"], padding=True), theirs, made)
        assert repr(made) == repr(theirs)
    same(lambda t: t("low low low", truncation=True, max_length=3), *both)
    for name, each in (("theirs", theirs), ("ours", ours)):
        each.save_pretrained(tmp_path / name)
    files = [sorted(path.name for path in (tmp_path / n).iterdir()) for n in ("theirs", "ours")]
    assert files[0] == files[1] and "tokenizer.json" in files[0]
    for name in files[0]:
        assert (tmp_path / "theirs" / name).read_bytes() == (tmp_path / "ours" / name).read_bytes()
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert again("low")["input_ids"] == theirs("low")["input_ids"]
    assert type(ours).from_pretrained(tmp_path / "ours")("low é").data == theirs("low é").data
    assert llmgpu.as_transformers(ours)("low").data == theirs("low").data


def test_the_given_tokenizer_stays_as_it_is() -> None:
    theirs = in_transformers(dict(library_tokenizers())["NFC"], **NAMED)
    before, kind = theirs._tokenizer.to_str(), type(theirs)
    state = {**vars(theirs)}
    ours = llmgpu.as_transformers(theirs)
    ours.add_tokens(["newest"])
    ours("newest", truncation=True, max_length=3)
    assert (theirs._tokenizer.to_str(), type(theirs), vars(theirs)) == (before, kind, state)


def test_a_batch_is_one_of_transformers(both: tuple[Any, Any]) -> None:
    batches = [each(["low é", "<s>er"], padding=True) for each in both]
    for batch in batches:
        assert isinstance(batch, transformers.BatchEncoding) and batch.is_fast
    results = [
        [
            batch.tokens(1),
            batch.word_ids(0),
            batch.char_to_token(0, 2),
            batch[0].offsets,
            batch.input_ids,
            [*batch],
            encodings_of(pickle.loads(pickle.dumps(batch))),
            encodings_of(copy.copy(batch)),
            type(batch)({"a": 1}).data,
            type(pickle.loads(pickle.dumps(batch))).__name__,
            batch.convert_to_tensors("np")["attention_mask"].tolist(),
        ]
        for batch in batches
    ]
    assert results[0][:-2] == results[1][:-2] and results[0][-1] == results[1][-1]
    marked = {"return_dict": True, "return_assistant_tokens_mask": True, "chat_template": MARKED}
    same(lambda t: t.apply_chat_template(MESSAGES, **marked), *both)
    same(lambda t: t.apply_chat_template([MESSAGES] * 2, padding=True, return_tensors="pt"), *both)


def _library(**parts: Any) -> Any:
    made = dict(library_tokenizers())["gpt2"]
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def _of_another_model() -> Any:
    return tokenizers.Tokenizer(
        tokenizers.models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]")
    )


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: _library(normalizer=tokenizers.normalizers.NFKC()), "normalizer 'NFKC' is not supp"),
    (
        lambda: _library(pre_tokenizer=tokenizers.pre_tokenizers.Metaspace()),
        "decoder 'ByteLevel' is not supported",
    ),
    (
        lambda: _library(pre_tokenizer=tokenizers.pre_tokenizers.ByteLevel()),
        "add_prefix_space is not supported",
    ),
    (_of_another_model, "model 'WordPiece' is not supported"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_refused_with_the_reason(make: Callable[[], Any], message: str) -> None:
    theirs = in_transformers(make())
    with pytest.raises(VocabularyError, match=message):
        llmgpu.as_transformers(theirs)
    with pytest.warns(UserWarning, match=message):
        assert llmgpu.as_transformers(theirs, strict=False) is theirs


def test_other_objects_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    from llmgpu.tokenizer import fast_transformers

    with pytest.raises(TypeError, match="takes a tokenizer of transformers, not str"):
        llmgpu.as_transformers("gpt2")

    base: Any = transformers.PreTrainedTokenizerFast

    class Own(base):
        def _encode_plus(self, *args: Any, **named: Any) -> Any:
            return super()._encode_plus(*args, **named)

    with pytest.raises(VocabularyError, match="Own has its own _encode_plus"):
        llmgpu.as_transformers(Own(tokenizer_object=dict(library_tokenizers())["gpt2"]))
    with pytest.raises(VocabularyError, match="is not a fast tokenizer"):
        llmgpu.as_transformers(transformers.ByT5Tokenizer())
    # The package in use: other packages may have imported it anew.
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "4.57.1")
    with pytest.raises(VocabularyError, match=r"transformers 5, but 4\.57\.1 is installed: pip"):
        fast_transformers._require_transformers()


def test_importing_the_package_does_not_import_transformers() -> None:
    code = "import sys, llmgpu; llmgpu.as_transformers; print('transformers' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert done.stdout == "False\n", done.stderr


class Collate:
    """Makes a batch of texts in a worker process."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, texts: list[str]) -> Any:
        return self.tokenizer(texts, padding=True, return_tensors="pt").data


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader(both: tuple[Any, Any], method: str) -> None:
    from torch.utils.data import DataLoader

    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    texts: Any = ["low", "lower é", "<s>newest", "", "x" * 50]
    found = [
        [
            plain(batch)
            for batch in DataLoader(
                texts,
                batch_size=2,
                collate_fn=Collate(each),
                num_workers=1,
                multiprocessing_context=method,
            )
        ]
        for each in both
    ]
    assert found[0] == found[1]


def test_map_of_datasets(both: tuple[Any, Any]) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["low", "lower é", "<s>newest", ""] * 3})
    found = [
        rows.map(lambda batch, each=each: each(batch["text"]), batched=True, batch_size=5)
        for each in both
    ]
    assert found[0].to_dict() == found[1].to_dict()


# What vLLM 0.33.0 and sglang 0.5.23 call on a tokenizer, on the side of the arguments they give.
SERVING: dict[str, Callable[[Any], Any]] = {
    "__call__": lambda t: t("low <s>é", truncation=True, max_length=5, add_special_tokens=False),
    "__len__": len,
    "_tokenizer": lambda t: t._tokenizer.get_vocab_size(),
    "add_bos_token": lambda t: t.add_bos_token,
    "add_special_tokens": lambda t: t.add_special_tokens({"pad_token": "<pad>"}),
    "add_tokens": lambda t: t.add_tokens(["<image>"], special_tokens=True),
    "added_tokens_decoder": lambda t: str(t.added_tokens_decoder),
    "all_special_ids": lambda t: t.all_special_ids,
    "all_special_tokens": lambda t: t.all_special_tokens,
    "apply_chat_template": lambda t: t.apply_chat_template(MESSAGES, tokenize=True),
    "apply_chat_template to a text": lambda t: t.apply_chat_template(MESSAGES, tokenize=False),
    "apply_chat_template to ids": lambda t: t.apply_chat_template(MESSAGES, return_dict=False),
    "backend_tokenizer": lambda t: t.backend_tokenizer.to_str(),
    "batch_decode": lambda t: t.batch_decode(
        [[5, 0], []], skip_special_tokens=True, spaces_between_special_tokens=True
    ),
    "bos_token": lambda t: (t.bos_token, t.bos_token_id),
    "chat_template": lambda t: (t.chat_template, t.get_chat_template()),
    "cls_token_id": lambda t: (t.cls_token_id, t.sep_token_id, t.unk_token, t.unk_token_id),
    "convert_ids_to_tokens": lambda t: t.convert_ids_to_tokens([3, 7, 0], skip_special_tokens=True),
    "convert_ids_to_tokens of an id": lambda t: t.convert_ids_to_tokens(7),
    "convert_tokens_to_ids": lambda t: t.convert_tokens_to_ids(["low", "<s>", "nothing"]),
    "convert_tokens_to_ids of a token": lambda t: t.convert_tokens_to_ids("</s>"),
    "convert_tokens_to_string": lambda t: t.convert_tokens_to_string(["Ġlow", "er"]),
    "decode": lambda t: t.decode([5, 0, 9], skip_special_tokens=False),
    "decode an id": lambda t: t.decode(9),
    "decoder": lambda t: str(t.decoder),
    "encode": lambda t: t.encode("low é", add_special_tokens=False),
    "eos_token": lambda t: (t.eos_token, t.eos_token_id, t.pad_token, t.pad_token_id),
    "get_added_vocab": lambda t: t.get_added_vocab(),
    "get_vocab": lambda t: (sorted(t.get_vocab().items()), len(t.vocab), t.vocab_size),
    "init_kwargs": lambda t: (t.init_kwargs, t.name_or_path, t.is_fast, t.model_max_length),
    "num_special_tokens_to_add": lambda t: t.num_special_tokens_to_add(),
    "padding_side": lambda t: (t.padding_side, t.truncation_side, t.split_special_tokens),
    "pad_token_type_id": lambda t: (t.pad_token_type_id, t.model_input_names),
    "special_tokens_map": lambda t: t.special_tokens_map,
    "update_post_processor": lambda t: (t.update_post_processor(), t("low")),
    "hash": lambda t: isinstance(hash(t), int),
}


@pytest.mark.parametrize("name", SERVING)
def test_methods_that_servers_call(both: tuple[Any, Any], name: str) -> None:
    call = SERVING[name]
    same(call, *both)
    same(lambda t: t(["low <image>", "<s>"], padding=True), *both)
    # vLLM changes the class of a shallow copy to a subclass, whose properties are cached.
    cached = [copy.copy(each) for each in both]
    for each in cached:
        each.__class__ = type("Cached", (type(each),), {"max_token_id": len(each) - 1})
    same(call, *cached)
    same(lambda t: t.max_token_id, *cached)


def test_a_stream_of_the_library(both: tuple[Any, Any]) -> None:
    ids = both[0].encode("lower than <s>é漢字 newest")
    texts = []
    for each in both:
        stream = tokenizers.decoders.DecodeStream(ids=[], skip_special_tokens=True)
        texts.append([stream.step(each._tokenizer, number) for number in ids])
    assert texts[0] == texts[1]


def test_the_page_lists_the_methods() -> None:
    page = (ROOT / "docs/python-api.md").read_text()
    missing = {name.split()[0] for name in SERVING if f"`{name.split()[0]}`" not in page} - {"hash"}
    assert not missing


@pytest.mark.parametrize("text", ["<s>", "low <s>", "low"])
def test_special_tokens_as_text_where_whole_pretokens_may_be_tokens(text: str) -> None:
    library = dict(library_tokenizers())["none"]
    library.model.ignore_merges = True
    theirs = in_transformers(library)
    same(lambda t: t(text, split_special_tokens=True), theirs, llmgpu.as_transformers(theirs))


def test_an_unset_padding_token_is_the_same_error() -> None:
    theirs = in_transformers(dict(library_tokenizers())["gpt2"])
    ours = llmgpu.as_transformers(theirs)
    same(lambda t: t(["a", "b"], padding=True), theirs, ours)
    assert json.loads(ours._tokenizer.to_str())["padding"] is None
    assert random_text(random.Random(1), ["<s>"])
