"""The spelling of options in messages, of amounts with a unit, and of other tools' names.

Messages of the library recommend options. During a call of the Python API, messages recommend
arguments of the API: ``device="cpu"`` in place of ``--device cpu``.

If a user gives a name from another tool, the error message tells the name in llmgpu. The names are
from tiktoken, tokenizers, SentencePiece, YouTokenToMe, nanoGPT, nanochat, llm.c, Megatron-LM,
llama.cpp and transformers. Names of commands and options have dashes in place of underscores. A
table maps a name of llmgpu to the names in other tools, unless the comment of the table says
otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from llmgpu.errors import InputError
from llmgpu.input_files import quote

COMMAND_NAMES = {
    "--help": "help",
    "--version": "version",
    "bpe-train": "train-bpe train-tokenizer",
    "compare-vocabs": "diff",
    "count": "wc",
    "export": "convert",
    "generate": "chat sample",
    "info": "inspect",
    "tokenize": "encode",
    "tokenize --decode": "decode detokenize",
    "train": "pretrain",
}
OPTION_NAMES = {
    "--bad-rows": "on-bad-row on-error skip-errors",
    "--batch-size": "device-batch-size micro-batch-size per-device-train-batch-size",
    "--beta1": "adam-beta1",
    "--beta2": "adam-beta2",
    "--disallow-special": "disallowed-special",
    "--budget": "fail-above limit-tokens max max-tokens",
    "--device": "cpu cuda gpu",
    "--dim": "d-model hidden-size model-dim n-embd",
    "--eos": "append-eod append-eos",
    "--eval-batches": "eval-iters",
    "--eval-corpus": "eval-data val-data valid-data-path validation-file",
    "--eval-fraction": "val val-fraction valid",
    "--eval-interval": "eval-every eval-steps val-loss-every",
    "--ffn-dim": "ffn-hidden-size intermediate-size",
    "--force": "overwrite yes",
    "--grad-accum": "gradient-accumulation-steps",
    "--grad-clip": "clip-grad max-grad-norm",
    "--heads": "n-head num-heads num-attention-heads",
    "--keep": "save-total-limit",
    "--kv-heads": "n-kv-head num-key-value-heads",
    "--layers": "depth n-layer num-hidden-layers num-layers",
    "--log-interval": "log-every logging-steps",
    "--lr": "learning-rate",
    "--max-new-tokens": "max-length max-tokens n n-predict num-predict",
    "--max-token-length": "max-sentencepiece-length",
    "--min-frequency": "min-count",
    "--output": "log-dir model model-prefix out out-dir outfile output-prefix",
    "--pattern": "encoding pre-tokenizer pretokenizer",
    "--pattern-regex": "pat-str regex split-pattern",
    "--precision": "dtype",
    "--prompt": "interactive start text",
    "--prompts": "file",
    "--recompute": "activation-checkpointing gradient-checkpointing recompute-activations",
    "--resume": "checkpoint init-from",
    "--save-interval": "checkpoint-every save-every save-steps",
    "--schedule": "lr-decay-style lr-scheduler-type",
    "--seq-len": "block-size context-length ctx-size max-seq-len max-seq-length",
    "--special-token": "control-symbols special-tokens user-defined-symbols",
    "--split": "val val-fraction val-split valid validation-split",
    "--steps": "epochs iters max-iters max-steps num-epochs num-iterations num-train-epochs "
    "train-iters",
    "--temperature": "do-sample temp",
    "--text-field": "column field json-keys key text-column",
    "--threads": "jobs n-jobs n-threads num-proc num-threads num-workers workers",
    "--to": "format",
    "--token-dtype": "dtype",
    "--vocab": "encoding model tokenizer tokenizer-model vocab-file",
    "--vocab-size": "num-merges",
    "--warmup-steps": "lr-warmup-iters warmup-iters",
    "--weights": "outtype quantize",
}
# Options that only other tools have, with the advice for each.
_VERBOSE = "progress and notes are shown without an option, and --debug adds a traceback to errors"
NO_OPTIONS = {
    "csv": "--json prints the same numbers, of which jq makes CSV (see the guide: Counting)",
    "dropout": "there is no dropout; --weight-decay regularizes",
    "greedy": "--temperature 0 takes the likeliest token",
    "num-return-sequences": "repeat the line in --prompts: each has a seed of its own",
    "recursive": "folders are read with all their subfolders",
    "tensorboard": "the folder has log.jsonl and loss.svg",
    "v": f"{_VERBOSE}; llmgpu -V prints the version",
    "verbose": _VERBOSE,
    "wandb": "the folder has log.jsonl and loss.svg",
}
VALUE_NAMES = {
    "adamw": "adam",
    "f16": "amp float16 fp16 half mixed",
    "f32": "float32 fp32 full",
    "gguf": "ggml llama.cpp",
    "jsonl": "json ndjson",
    "llmc": "llm-c llm.c",
    "npy": "numpy",
}
# llama.cpp's types of quantized weights that only its own tool writes. In these types the scales of
# small blocks are quantized, too.
_K_TYPES = "q2_k q3_k q3_k_s q3_k_m q3_k_l q4_k q4_k_s q4_k_m q5_k q5_k_s q5_k_m q6_k"
NO_VALUES = {
    **dict.fromkeys(("bf16", "bfloat16"), "WebGPU has no bfloat16"),
    "tf32": "WebGPU has no TF32",
    **{
        name: "llama.cpp's tool makes this type from a file with --weights f16: "
        f"llama-quantize IN.gguf OUT.gguf {name.upper()}"
        for name in _K_TYPES.split()
    },
}
# Options by which other tools name input files. In llmgpu, input files are arguments.
FILES = frozenset(
    ("corpus", "data", "data-path", "dataset", "file", "files", "in", "infile", "input", "text")
) | {"train-data", "train-data-path", "train-file"}
# Methods and attributes of tokenizers.
METHOD_NAMES = {
    "encode": "encode_plus encode_to_numpy tokenize",
    "encode_batch": "batch_encode_plus encode_batch_fast encode_ordinary_batch",
    "decode": "convert_tokens_to_string",
    "decode_batch": "batch_decode",
    "decode_bytes": "decode_bytes_batch decode_tokens_bytes",
    "token_to_id": "convert_tokens_to_ids encode_single_token",
    "id_to_token": "convert_ids_to_tokens",
    "special_tokens": "all_special_ids all_special_tokens is_special_token special_tokens_set",
    "vocab_size": "get_vocab_size max_token_value",
    "get_vocab": "vocab",
    "get_vocab_bytes": "token_byte_values",
    "eot_token": "bos_token_id eos_token eos_token_id",
    "truncate": "enable_truncation",
    'export("huggingface", "FOLDER/")': "save_pretrained",
    "as_hf()": "add_special_tokens add_tokens enable_padding model_max_length pad pad_token "
    "pad_token_id to_str unk_token unk_token_id",
    "as_tiktoken()": "encode_with_unstable",
    "load": "from_buffer from_file from_str",
    "train_from_iterator": "train_new_from_iterator",
}
_OTHERS = {name for others in METHOD_NAMES.values() for name in others.split()}
# Arguments of methods of tiktoken and Hugging Face, with the advice for each.
ARGUMENTS = {
    "clean_up_tokenization_spaces": "spaces stay as they are",
    "max_length": "cut the ids, as in ids[:512], or the text with truncate",
    "num_threads": "all processors are used",
    "padding": "as_hf() has a tokenizer that pads",
    "return_offsets_mapping": "use encode_with_offsets",
    "return_tensors": 'use dtype="pt" or dtype="np"',
    "tokenize": "use render_chat_template for the text",
    "truncation": "cut the ids, as in ids[:512], or the text with truncate",
}


def names_here(table: Mapping[str, str], name: str) -> list[str]:
    """Return the names in llmgpu, from a table, that other tools call `name`."""
    return [ours for ours, others in table.items() if name in others.split()]


class OtherName:
    """A class attribute for another tool's name; reading it raises an error with llmgpu's name.

    `__getattr__` could raise the error, too. But in Python 3.11, looking up any method of a class
    with `__getattr__` takes 0.07 us longer, and encoding a few words takes only 0.1 us in all.
    """

    def __init__(self, name: str) -> None:
        """Store the name that the other tool uses."""
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        """Raise the AttributeError."""
        ours = names_here(METHOD_NAMES, self._name)[0]
        raise AttributeError(f"{owner.__name__} has no {self._name}: use {ours}")


class Named(type):
    """Metaclass of classes that raise a helpful error for method names of other tools."""

    def __init__(cls, *args: Any, **named: Any) -> None:
        """Add an `OtherName` for each name of another tool that the class and its bases lack."""
        super().__init__(*args, **named)
        for name in _OTHERS:
            found = [vars(each)[name] for each in cls.__mro__ if name in vars(each)]
            defined = [each for each in found if not isinstance(each, OtherName)]
            if not found or (defined and found[0] is not defined[0]):
                setattr(cls, name, defined[0] if defined else OtherName(name))

    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if not is_other_name(cls, name)]


def is_other_name(owner: type, name: str) -> bool:
    """Whether a class attribute is an `OtherName`, so that listings such as `dir` leave it out."""
    found = (vars(each)[name] for each in owner.__mro__ if name in vars(each))
    return isinstance(next(found, None), OtherName)


Wrapped = TypeVar("Wrapped", bound=type)
P = ParamSpec("P")
T = TypeVar("T")


# One entry for each running call of the Python API, in all threads together, because a message may
# be composed in another thread than the caller's. A list needs no lock: append and pop can't be
# interrupted, and a lock could stay locked in a forked process.
_running: list[None] = []


def spelled(option: str, argument: str = "") -> str:
    """Return an option, such as ``--device cpu``, spelled for the command line or for Python.

    option: the spelling on the command line. argument: the spelling in Python, by default the
    option's name with underscores.
    """
    if not _running:
        return option
    name, _, value = option.removeprefix("--").partition(" ")
    name = name.replace("-", "_")
    return argument or (f'{name}="{value}"' if value else name)


def speaks_python(api: Wrapped) -> Wrapped:
    """Class decorator: errors of the public methods recommend arguments in place of options."""
    for name, member in list(vars(api).items()):
        if name.startswith("_") and name not in ("__init__", "__call__"):
            continue
        if isinstance(member, classmethod):
            setattr(api, name, classmethod(speaking_python(member.__func__)))
        elif callable(member):
            setattr(api, name, speaking_python(member))
    return api


def speaking_python(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator: errors of the function recommend arguments in place of options."""

    @wraps(function)
    def called(*arguments: P.args, **named: P.kwargs) -> T:
        _running.append(None)
        try:
            return function(*arguments, **named)
        except TypeError as error:
            hints = [f"; {ARGUMENTS[name]}" for name in named if name in ARGUMENTS]
            error.args = ("".join((str(error), *hints)),)
            raise
        finally:
            _running.pop()

    return called


BYTE_UNITS = {"": 1, "B": 1}
for _power, _unit in enumerate("KMGT", 1):
    BYTE_UNITS |= {_unit: 1000**_power, f"{_unit}B": 1000**_power, f"{_unit}IB": 1024**_power}
BYTE_EXAMPLES = "4096, 100MB or 2GiB"
_MOST_DIGITS = 18  # most digits before the point, and after it; no text has 10**18 bytes or tokens


def parse_amount(text: str, units: Mapping[str, int], name: str, one: str, examples: str) -> int:
    """Return the number spelled by a text. An amount such as 1.5KB is rounded down to whole bytes.

    units: size of each unit, by the unit's name in capitals.
    name, one, examples: words of the error message: the kind of amount ("size"), the smallest
        unit ("byte") and valid spellings.

    Raises InputError for a text that is not a number with a known unit, for an amount below 1, and
    for a fraction of the smallest unit.
    """
    number = rf"-?(\d{{1,{_MOST_DIGITS}}}(?:\.\d{{1,{_MOST_DIGITS}}})?)"
    match = re.fullmatch(rf"\s*{number}\s*([A-Za-z]*)\s*", text, re.ASCII)
    if match is None or match[2].upper() not in units:
        raise InputError(f"{quote(text)} is not a {name}; write {examples}")
    whole, _, decimals = match[1].partition(".")
    one_of_unit = units[match[2].upper()]
    amount: int = int(whole + decimals) * one_of_unit // 10 ** len(decimals)
    if amount < 1 or "-" in text:
        raise InputError(f"{quote(text)} is less than one {one}".rstrip())
    if one_of_unit == 1 and decimals.strip("0"):
        raise InputError(f"{quote(text)} is not a whole number; write {examples}")
    return amount


def parse_bytes(text: str) -> int:
    """Return the number of bytes that a text spells: 1 MB is 10**6 bytes, 1 MiB is 2**20.

    Raises InputError for any other text.
    """
    return parse_amount(text, BYTE_UNITS, "size", "byte", BYTE_EXAMPLES)
