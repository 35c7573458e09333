"""Random calls of tokenizers of transformers, and their results in a form that can be compared.

In a file of its own for `tests/test_fast_transformers.py` and longer runs.
"""

from __future__ import annotations

import importlib
import json
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

PIECES = [
    *"abcdelowrt ABC 0123 .,!'\"-_\n\t\r",
    *("low", "lower", " newest", "  ", "\n\n", " \n", "don't", " 12345", "é", "ü", "e\u0301"),
    *("漢字", "かな", "한", "\u1112\u1161", "😀", "👩\u200d👧", "\u200b", "\ufeff", "\x00"),
    *("ß", "İ", "ΑΣ", "\u0295", "\u0378", "\u0558", "\ufdfa", "\u00a0", "\u3000", "½", "Ⅷ"),
]
CORPUS = [
    "low lower lowest newest widest don't you'll 1234567 é ü ß 漢字 かな 한국 😀 \n\n \t x_y",
    "The quick brown fox. İstanbul ΑΣΣ e\u0301 \u200b ½ Ⅷ <s> </s> <mask> hello  world\r\n",
]


def random_text(rng: random.Random, tokens: Sequence[str]) -> str:
    """Return a text of up to 12 pieces, among them the texts of tokens, whole and cut."""
    pieces = []
    for _ in range(rng.randrange(12)):
        kind = rng.random()
        if tokens and kind < 0.2:
            token = rng.choice(tokens)
            pieces.append(token if kind < 0.15 else token[: rng.randrange(len(token) + 1)])
        elif kind > 0.995:
            pieces.append(chr(rng.randrange(0xD800, 0xE000)))
        elif kind > 0.95:
            pieces.append(chr(rng.choice([rng.randrange(0x3000), rng.randrange(0xE000, 0x20000)])))
        else:
            pieces.append(rng.choice(PIECES))
    return "".join(pieces)


_CHOICES: dict[str, tuple[Any, ...]] = {
    "add_special_tokens": (True, False),
    "padding": (False, True, "longest", "max_length", "do_not_pad"),
    "truncation": (None, False, True, "longest_first", "only_first", "only_second"),
    "max_length": (None, 0, 1, 2, 3, 5, 8, 13),
    "stride": (0, 0, 0, 1),
    "pad_to_multiple_of": (None, 1, 2, 4, 8),
    "padding_side": (None, "left", "right"),
    "return_tensors": (None, "np", "pt"),
    "return_token_type_ids": (None, True, False),
    "return_attention_mask": (None, True, False),
    "return_special_tokens_mask": (True, False),
    "return_length": (True, False),
    "return_offsets_mapping": (False, False, True),
    "return_overflowing_tokens": (False, False, True),
    "split_special_tokens": (None, True, False),
    "verbose": (True, False),
}


def random_arguments(rng: random.Random) -> dict[str, Any]:
    """Return a few arguments of ``__call__``; most calls have none or few that are odd."""
    share = rng.choice((0.1, 0.3, 0.6))
    return {name: rng.choice(of) for name, of in _CHOICES.items() if rng.random() < share}


def plain(value: Any) -> Any:
    """Return a result in a form that compares by value, with the types that callers see."""
    if hasattr(value, "dtype"):
        return str(type(value)), str(value.dtype), tuple(value.shape), plain(value.tolist())
    if hasattr(value, "data") and hasattr(value, "n_sequences"):
        items = [(name, plain(part)) for name, part in value.data.items()]
        return "batch", items, value.n_sequences, value.is_fast
    if isinstance(value, dict):
        return [(name, plain(part)) for name, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(plain, value)]
    return type(value).__name__, value


def encodings_of(value: Any) -> Any:
    """Return the library's encodings of a BatchEncoding, with all their arrays."""
    names = [
        "ids",
        "type_ids",
        "tokens",
        "offsets",
        "attention_mask",
        "special_tokens_mask",
        "word_ids",
    ]
    return [[getattr(each, name) for name in names] for each in value.encodings or ()]


def outcome(call: Callable[[], Any], inspect: Callable[[Any], Any] = plain) -> Any:
    """Return the result of a call, or its exception, with the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = inspect(call())
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the library is no Exception
            found = type(error).__name__, str(error)
    return found, [str(each.message) for each in caught]


def random_call(rng: random.Random, tokens: Sequence[str]) -> Callable[[Any], Any]:
    """Return a call of a random method that encodes, which takes a tokenizer."""
    arguments = random_arguments(rng)
    texts: Any = [random_text(rng, tokens) for _ in range(rng.randrange(4))]
    kind = rng.random()
    if kind < 0.45:
        texts = random_text(rng, tokens)
    elif kind < 0.5:
        texts = tuple(texts)
    pair = rng.random()
    if pair < 0.05:
        arguments["text_pair"] = random_text(rng, tokens) if isinstance(texts, str) else [*texts]
    elif pair < 0.08 and texts:
        arguments["is_split_into_words"] = True
    if kind < 0.2:
        arguments = {k: v for k, v in arguments.items() if not k.startswith("return_o")}
        return lambda tokenizer: tokenizer.encode(texts, **arguments)
    return lambda tokenizer: tokenizer(texts, **arguments)


def random_decoding(rng: random.Random, size: int) -> Callable[[Any], Any]:
    """Return a call of a random method that decodes, which takes a tokenizer; size: of ids."""
    import numpy as np

    def ids() -> list[int]:
        most = size if rng.random() < 0.9 else size + 5
        return [rng.randrange(most) for _ in range(rng.randrange(10))]

    options: dict[str, Any] = {}
    if rng.random() < 0.5:
        options["skip_special_tokens"] = rng.random() < 0.5
    name = rng.choice(["decode", "decode", "batch_decode", "convert_ids_to_tokens"])
    given: Any = ids()
    kind = rng.random()
    if name != "convert_ids_to_tokens":
        if rng.random() < 0.3:
            options["clean_up_tokenization_spaces"] = rng.choice([None, True, False])
        if name == "batch_decode" or kind < 0.1:
            given = [ids() for _ in range(rng.randrange(4))]
    if 0.1 < kind < 0.2 and all(isinstance(each, int) for each in given):
        given = np.array(given, np.int64)
    elif 0.2 < kind < 0.25:
        given = rng.randrange(size + 2)
    elif 0.25 < kind < 0.27:
        given = [-1]
    elif 0.27 < kind < 0.29:
        given = [1.0]
    elif 0.29 < kind < 0.31:
        given = tuple(given)
    return lambda tokenizer: getattr(tokenizer, name)(given, **options)


def library_tokenizers() -> Iterator[tuple[str, Any]]:
    """Yield small tokenizers of the library by name: each component that llmgpu reads."""
    from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors

    from tests.bpe.interchange.test_piece_files_reading import CASES

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    llama = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )

    def split(pattern: Any) -> Any:
        return pre_tokenizers.Split(pattern, "isolated")

    cuts = {
        "gpt2": byte_level,
        "none": last,
        "llama3": pre_tokenizers.Sequence([split(Regex(llama)), last]),
        "digits": pre_tokenizers.Sequence([pre_tokenizers.Digits(True), byte_level]),
        "own": pre_tokenizers.Sequence([split(Regex(r"\p{Lu}?\p{Ll}+|\p{P}|\d\d")), last]),
        "string": pre_tokenizers.Sequence([split("low"), last]),
    }
    changes = {
        "NFC": normalizers.NFC(),
        "Lowercase": normalizers.Lowercase(),
        "Prepend": normalizers.Prepend("x "),
        "Replace": normalizers.Replace("lo", "LOL"),
        "Strip": normalizers.Strip(),
        "Sequence": normalizers.Sequence(
            [normalizers.NFC(), normalizers.Replace(" ", "_"), normalizers.Lowercase()]
        ),
    }
    ends = [("<s>", 0), ("</s>", 1)]
    template = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=ends
    )
    around = {
        "template": template,
        "types": processors.TemplateProcessing(
            single="<s>:2 <s>:3 $A:1", pair="$A $B", special_tokens=ends
        ),
        "roberta": processors.RobertaProcessing(("</s>", 1), ("<s>", 0), add_prefix_space=False),
        "bert": processors.BertProcessing(("</s>", 1), ("<s>", 0)),
        "bytes": processors.ByteLevel(trim_offsets=True),
        "several": processors.Sequence([processors.ByteLevel(), template]),
    }
    for name, cut in cuts.items():
        yield name, _trained(cut)
    for name, change in changes.items():
        yield name, _trained(byte_level, change, template)
    for name, processor in around.items():
        yield name, _trained(cuts["llama3"], None, processor)
    yield "flags", _trained(byte_level, flags=True)
    yield "flags NFC", _trained(byte_level, changes["NFC"], flags=True)
    yield "mixed", _trained(byte_level, None, template, mixed=True)
    yield "mixed Lowercase", _trained(byte_level, changes["Lowercase"], template, mixed=True)
    yield "few bytes", _trained(byte_level, few=True)
    for name, make in CASES.items():
        yield f"pieces, {name}", Tokenizer.from_str(json.dumps(make(1)))


def _trained(
    cut: Any,
    change: Any = None,
    processor: Any = None,
    flags: bool = False,
    mixed: bool = False,
    few: bool = False,
) -> Any:
    """Return a tokenizer of the library; few: most bytes have no token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, trainers

    made = Tokenizer(models.BPE())
    made.normalizer, made.pre_tokenizer, made.decoder = change, cut, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>", "<pad>", "<|long|>", "<|long|>er"],
        initial_alphabet=[] if few else cut.alphabet() if hasattr(cut, "alphabet") else _alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["low lower"] if few else CORPUS * 4, trainer)
    if processor is not None:
        made.post_processor = processor
    if flags:
        made.add_tokens([AddedToken("<mask>", lstrip=True, normalized=False, special=True)])
        made.add_tokens([AddedToken("wide", single_word=True, normalized=False)])
    if mixed:
        made.add_tokens(
            [AddedToken("Lowly", normalized=True), AddedToken("owls", normalized=False)]
        )
        made.add_tokens([AddedToken("a b", normalized=True), AddedToken("ĠĠĠ", normalized=False)])
        made.add_tokens([AddedToken("<E>", normalized=True, special=True), "é漢"])
    return made


def _alphabet() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return list(ByteLevel.alphabet())


def in_transformers(library: Any, **named: Any) -> Any:
    """Return a tokenizer of transformers with the library's tokenizer."""
    transformers = importlib.import_module("transformers")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=library, **named)
