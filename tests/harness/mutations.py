"""Damaged and forged files of every format, and the commands that read them."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import struct
import tomllib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from llmgpu.bpe.interchange import sentencepiece
from llmgpu.bpe.interchange.gguf import read_metadata
from llmgpu.lm.checkpoints.checkpoint import _hash_json
from tests.bpe.interchange import models
from tests.harness.properties import run_checked
from tests.harness.samples import ADAPTED, CHECKPOINTED, MODEL, SHARDED, TRAINED, fresh_copy
from tests.lm.samples import sum_of_parts

CPU = ("--device", "cpu")
V = ("--vocab", "in/v.bin", *CPU)
TRAINING = ("train", *V[:2], *MODEL, "--steps", "1", "-o", "out/model")
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 255, 256, 2**31 - 1, 2**31, 2**32, 2**53, 2**63, 10**400),
    *(0.5, -0.0, 1e308, float("nan"), float("inf"), "", "x", "x" * 5000, "\ud800", "\x1b[2J\0"),
    *("../../etc/passwd", "/dev/zero", [], {}, [[]], [0], {"": 0}, {"a": {}}, "NaN", "f" * 64),
)
DEEP = ("[" * 100_000, '{"a":' * 100_000, "9" * 5000, "-" + "9" * 5000, "1e999999")


@dataclass(frozen=True)
class Target:
    """A file to damage, relative to the folder, and a command that reads it.

    kept: the folder of an unfinished run that is copied to ``out`` first; None if there is none.
    """

    file: str
    command: tuple[str, ...]
    kept: str | None = None


def _targets() -> list[Target]:
    found = [
        Target("in/v.bin", command)
        for command in (
            *(("info", "in/v.bin"), ("info", "in/v.bin", "--tokens", "--json")),
            ("tokenize", "in/corpus.txt", *V, "--count"),
            ("tokenize", "in/ids.ids", *V, "--decode", "-o", "out/text"),
            ("bpe-train", "in/corpus.txt", "--seed-vocab", "in/v.bin", "-o", "out/v.bin", *CPU),
            *(
                ("export", "in/v.bin", "--to", name, "-o", "out/t")
                for name in ("tiktoken", "huggingface", "gpt2", "gguf")
            ),
        )
    ]
    found += [Target("in/counts", ("bpe-train", "--from-counts", "in/counts", "-o", "out/v", *CPU))]
    record = ("bench", "--from", "in/record.json")
    found += [
        *(
            Target(f"in/{name}", ("import", f"in/{name}", "-o", "out/v.bin"))
            for name in ("t.json", "ranks", "tekken.json", "v.gguf", "pieces.gguf")
        ),
        Target("in/v.gguf", ("tokenize", "in/corpus.txt", "--vocab", "in/v.gguf", *CPU)),
        Target("in/tekken.json", ("tokenize", "in/corpus.txt", "--vocab", "in/tekken.json", *CPU)),
        *(
            Target(f"in/{name}", command)
            for name in ("t.model", "pieces.json", "pieces.bin", "pieces.gguf")
            for command in (
                ("info", f"in/{name}", "--tokens"),
                ("tokenize", "in/corpus.txt", "--vocab", f"in/{name}", *CPU),
                ("tokenize", "in/ids.ids", "--vocab", f"in/{name}", "--decode", "-o", "out/text"),
                ("export", f"in/{name}", "--to", "huggingface", "-o", "out/t"),
            )
        ),
        Target("in/run.toml", (*TRAINING[:1], "--config", "in/run.toml", *TRAINING[3:])),
        Target("in/ranks.json", ("import", "in/ranks", "-o", "out/v.bin")),
        *(
            Target(f"in/gpt2/{name}", ("import", *GPT2, "-o", "out/v.bin"))
            for name in ("vocab.json", "merges.txt")
        ),
        Target("in/record.json", (*record, "--report", "out/r.html")),
        Target("in/record.json", (*record, "--compare", "in/record.json")),
    ]
    for name in ("c.jsonl", "c.parquet", "c.txt.gz", "c.txt.bz2", "c.txt.xz", "c.txt.zst"):
        found.append(Target(f"in/{name}", ("tokenize", f"in/{name}", *V, "-o", "out/ids")))
        found.append(Target(f"in/{name}", ("bpe-train", f"in/{name}", "-o", "out/v.bin", *CPU)))
    found += [*_token_files(), *_conversations()]
    compare = ("compare-vocabs", "in/v.bin", "in/t.json", "--on", "in/corpus.txt", *CPU)
    return [
        *found,
        *_unfinished(),
        *(Target(f"in/{name}", compare) for name in ("v.bin", "t.json")),
        *(Target(f"in/{name}", ("info", f"in/{name}")) for name in ("counts", "v.gguf")),
        Target("in/v.bin", ("count", "in/corpus.txt", *V, "--per", "total")),
        Target("in/counts", ("merge-word-counts", "in/counts", "in/counts", "-o", "out/all")),
    ]


def _token_files() -> list[Target]:
    found = []
    for name in ("ids", "jsonl", "npy", "bin"):
        decode = ("tokenize", f"in/ids.{name}", *V, "--decode", "--format", name, "-o", "out/text")
        found.append(Target(f"in/ids.{name}", decode))
    return [
        *found,
        Target("in/ids.bin.json", decode),
        Target("in/ids.bin.json", (*TRAINING, "in/ids.bin")),
        Target("in/ids.bin", (*TRAINING, "in/ids.bin")),
        *(
            Target(f"in/shards{end}", (*TRAINING, "in/shards.json"))
            for end in (".json", "-000001.bin", "-000000.bin.json")
        ),
        *(
            Target(f"in/megatron.{end}", command)
            for end in ("bin", "bin.json", "idx")
            for command in (
                (*TRAINING, "in/megatron.bin"),
                ("tokenize", "in/megatron.bin", *V, "--decode", "-o", "out/text"),
                ("info", "in/megatron.bin"),
            )
        ),
        *(Target(f"in/nanogpt.bin{end}", (*TRAINING, "in/nanogpt.bin")) for end in ("", ".json")),
        Target("in/ids.bin", ("info", "in/ids.bin", "--json")),
    ]


def _conversations() -> list[Target]:
    read = ("tokenize", "in/chat.jsonl", "--chat", "--vocab", "in/chat/v.bin", *CPU)
    trained = ("train", "in/chat.bin", "--vocab", "in/chat/v.bin", *MODEL, "--steps", "1")
    return [
        *(
            Target(f"in/{name}", (*read, "-o", "out/i.bin"))
            for name in ("chat.jsonl", "chat/v.bin")
        ),
        Target("in/t.jinja", (*read, "--chat-template", "in/t.jinja", "-o", "out/i.bin")),
        Target("in/chat/tokenizer_config.json", ("import", "in/chat", "-o", "out/v.bin")),
        *(Target(f"in/chat.bin{end}", (*trained, "-o", "out/m")) for end in (".json", ".mask.npy")),
    ]


PARTS = ("kept/parts-1-of-2.json", "kept/parts-2-of-2.json")
GPT2 = ("in/gpt2/vocab.json", "in/gpt2/merges.txt")


def _unfinished() -> list[Target]:
    resumed = (*CHECKPOINTED, "--checkpoint", "kept/run", "--resume", "-o", "out/v.bin")
    sharded = (*SHARDED, "-o", "kept/shards.bin", "--resume")
    trained = (*TRAINED, "--steps", "2", "-o", "kept/model", "--resume")
    generated = ("generate", "kept/model", "--prompt", "the", "--max-new-tokens", "3", *CPU)
    step = "kept/model/step-00000001"
    files = ("config.json", "model.safetensors", "optimizer.safetensors", "training.json")
    adapted = (*ADAPTED, "--steps", "2", "-o", "kept/adapted", "--resume")
    adapters = (
        *("optimizer.safetensors", "training.json", "model.safetensors"),
        *("adapter/adapter_config.json", "adapter/adapter_model.safetensors"),
    )
    return [
        *(
            Target(
                f"kept/parts-1-of-2{end}", ("merge-shards", *PARTS, "-o", "kept/all.json"), "kept"
            )
            for end in (".json", "-000000.bin", "-000000.bin.json", ".bin.part.json")
        ),
        *(Target(f"kept/run/{name}", resumed, "kept") for name in ("run.json", "counts", "merges")),
        *(
            Target(f"kept/shards{end}", sharded, "kept")
            for end in (".progress.json", "-000000.bin", "-000001.bin.json")
        ),
        *(
            Target(f"{step}/{name}", command, "kept")
            for name in (*files, "vocabulary.bin")
            for command in (generated, trained)
        ),
        *(
            Target(f"kept/model/{name}", trained, "kept")
            for name in ("log.jsonl", "tokens/made-from.json", "tokens/tokens.json", "run.lock")
        ),
        *(Target(f"kept/adapted/step-00000001/{name}", adapted, "kept") for name in adapters),
        *(Target(f"{step}/{name}", adapted, "kept") for name in files[:2]),
    ]


TARGETS = _targets()


def damage(data: bytes, rng: random.Random) -> bytes:
    """Return other bytes: some changed, cut off, put in, doubled or moved."""
    mutable = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 40))):
        size = len(mutable)
        k = rng.randrange(size + 1)
        end = min(size, k + rng.choice((1, 1, 2, 4, 8, 100)))
        match rng.randrange(7):
            case 0 if k < size:
                mutable[k] ^= 1 << rng.randrange(8)
            case 1 if k < size:
                mutable[k] = rng.choice((0, 1, 127, 128, 255, 34, 123, 91, 10))
            case 2:
                del mutable[k:]
            case 3:
                del mutable[k:end]
            case 4:
                mutable[k:k] = rng.randbytes(rng.choice((1, 2, 4, 8, 1000)))
            case 5:
                mutable[k:k] = mutable[k:end] * rng.choice((1, 2, 100))
            case 6:
                mutable[k:end] = rng.choice((0, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)).to_bytes(
                    8, "little"
                )
    return bytes(mutable)


def forge(value: Any, rng: random.Random) -> Any:
    """Return JSON in which one value, somewhere, is another."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        changed, key = dict(value), rng.choice(list(value))
        match rng.randrange(12):
            case 0:
                del changed[key]
            case 1:
                changed[rng.choice(("", "x", "format", "\x1b", "x" * 3000))] = rng.choice(HOSTILE)
            case _:
                changed[key] = forge(changed[key], rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.9:
        items, k = list(value), rng.randrange(len(value))
        match rng.randrange(12):
            case 0:
                del items[k]
            case 1:
                items[k:k] = items[:k]
            case _:
                items[k] = forge(items[k], rng)
        return items
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.4:
        return value + rng.choice((-1, 1, 1000, -1000))
    return rng.choice(HOSTILE)


def _dump(value: Any, rng: random.Random) -> bytes:
    text = json.dumps(value)
    if rng.random() < 0.05:
        found = rng.choice(("0", "1", '""', "null", "true", "256"))
        text = text.replace(found, rng.choice(DEEP), 1)
    return text.encode("utf-8", "surrogatepass")


def _forge_json(data: bytes, rng: random.Random) -> bytes:
    return _dump(forge(json.loads(data), rng), rng)


def _forge_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    k = rng.randrange(len(lines))
    lines[k] = _forge_json(lines[k], rng) + b"\n"
    return b"".join(lines)


def _forge_toml(data: bytes, rng: random.Random) -> bytes:
    options = forge(tomllib.loads(data.decode()), rng)
    if not isinstance(options, dict):
        return data[: rng.randrange(len(data))]
    lines = (f"{name} = {json.dumps(value)}\n" for name, value in options.items())
    return "".join(lines).encode("utf-8", "surrogatepass")


def _forge_training(data: bytes, rng: random.Random) -> bytes:
    content = json.loads(data)
    del content["sha256"]
    content = forge(content, rng)
    if isinstance(content, dict):
        content["sha256"] = _hash_json(content)
    return _dump(content, rng)


def _forge_vocabulary(data: bytes, rng: random.Random) -> bytes:
    content = msgpack.unpackb(data)
    key = rng.choice(list(content))
    value = content[key]
    content[key] = damage(value, rng) if isinstance(value, bytes) else forge(value, rng)
    return _pack(content, data)


def _pack(content: Any, otherwise: bytes) -> bytes:
    try:
        packed: bytes = msgpack.packb(content)
    except (OverflowError, ValueError, TypeError):  # what msgpack has no form for
        return otherwise[:-1]
    return packed


def _forge_counts(data: bytes, rng: random.Random) -> bytes:
    unpacker = msgpack.Unpacker()
    unpacker.feed(data)
    header = unpacker.unpack()
    body = data[unpacker.tell() : -32]
    if rng.random() < 0.5:
        header = forge(header, rng)
    else:
        body = damage(body, rng)
    whole = _pack(header, b"") + body
    return whole + hashlib.sha256(whole).digest()


def _forge_merges(data: bytes, rng: random.Random) -> bytes:
    number = int.from_bytes(data[:4], "little")
    content = bytearray(data[8 : 8 + 16 * number])
    k = rng.randrange(max(len(content) // 4, 1)) * 4
    content[k : k + 4] = rng.choice((rng.randrange(400), rng.randrange(1 << 32))).to_bytes(
        4, "little"
    )
    crc = zlib.crc32(content)
    return data[:4] + crc.to_bytes(4, "little") + bytes(content) + data[8 + 16 * number :]


def _forge_tensors(data: bytes, rng: random.Random) -> bytes:
    length = int.from_bytes(data[:8], "little")
    if rng.random() < 0.5:
        header = _forge_json(data[8 : 8 + length], rng)
        return len(header).to_bytes(8, "little") + header + data[8 + length :]
    k = 8 + length + 4 * rng.randrange((len(data) - 8 - length) // 4)
    return data[:k] + b"\xff\xff\xff\x7f" + data[k + 4 :]  # NaN


def _forge_model(data: bytes, rng: random.Random) -> bytes:
    """Change a field of a SentencePiece model, at the top or in a message."""
    fields: list[list[Any]] = []
    for number, message in sentencepiece._fields(data):
        assert isinstance(message, bytes)
        inner = [list(each) for each in sentencepiece._fields(message)]
        for each in inner:
            if (number, each[0]) == (1, 2):  # the score of a piece
                (each[1],) = struct.unpack("<f", each[1])
        fields.append([number, inner])
    return _message(forge(fields, rng))


def _message(fields: Any) -> bytes:
    """Return a message of pairs of a number and a value. What is no such pair is left out."""
    parts = []
    for each in fields if isinstance(fields, list) else []:
        match each:
            case [int(key), float(value)]:
                score = value if abs(value) < 1e38 else float("inf")
                parts.append(models.number((key & 0xFFFF) << 3 | 5) + struct.pack("<f", score))
            case [int(key), int(value)]:
                parts.append(models.field(key & 0xFFFF, value & (1 << 64) - 1))
            case [int(key), str(value)]:
                parts.append(models.field(key & 0xFFFF, value.encode(errors="surrogatepass")))
            case [int(key), bytes(value)]:
                parts.append(models.field(key & 0xFFFF, value))
            case [int(key), list(value)]:
                parts.append(models.field(key & 0xFFFF, _message(value)))
    return b"".join(parts)


def _forge_gguf(data: bytes, rng: random.Random) -> bytes:
    """Change a value of the metadata of a GGUF file's tokenizer, and leave all else out."""
    metadata = forge(read_metadata(data), rng)
    entries = [*metadata.items()] if isinstance(metadata, dict) else []
    parts = [b"GGUF", struct.pack("<IQQ", 3, 0, len(entries))]
    for name, value in entries:
        parts += [_gguf_value(name)[4:], _gguf_value(value)]
    return b"".join(parts)


def _gguf_value(value: Any) -> bytes:
    """Return a value with its type before it; a list has the type of its first item."""
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<IQ", 10, value & (1 << 64) - 1)
        case float():
            return struct.pack("<Id", 12, value)
        case list():
            items = [_gguf_value(each) for each in value] or [_gguf_value("")]
            of_first = [each[4:] for each in items if each[:4] == items[0][:4]]
            return (
                struct.pack("<I", 9)
                + items[0][:4]
                + struct.pack("<Q", len(of_first))
                + (b"".join(of_first))
            )
    data = (value if isinstance(value, str) else repr(value)).encode(errors="surrogatepass")
    return struct.pack("<IQ", 8, len(data)) + data


Forger = Callable[[bytes, random.Random], bytes]


def _forger(name: str) -> Forger | None:
    """Return what changes a file and repairs its checksums, by its name."""
    special: dict[str, Forger] = {
        "training.json": _forge_training,
        "run.toml": _forge_toml,
        "v.bin": _forge_vocabulary,
        "vocabulary.bin": _forge_vocabulary,
        "pieces.bin": _forge_vocabulary,
        "t.model": _forge_model,
        "counts": _forge_counts,
        "merges": _forge_merges,
        "log.jsonl": _forge_lines,
        "c.jsonl": _forge_lines,
        "chat.jsonl": _forge_lines,
        "ids.jsonl": _forge_lines,
        "shards.progress.json": _forge_lines,
    }
    if name in special:
        return special[name]
    if name.endswith(".safetensors"):
        return _forge_tensors
    if name.endswith(".gguf"):
        return _forge_gguf
    return _forge_json if name.endswith(".json") else None


def prepare(samples: Path, folder: Path, target: Target, rng: random.Random) -> None:
    """Damage or forge the file of a target in a folder made by `fresh_copy`."""
    if target.kept is not None:
        shutil.copytree(samples / target.kept, folder / target.kept, copy_function=shutil.copy2)
    path = folder / target.file
    data = path.read_bytes()
    forger = _forger(path.name)
    changed = forger(data, rng) if forger and rng.random() < 0.7 else damage(data, rng)
    path.write_bytes(changed)
    training = path.parent / "training.json"
    if training.exists() and path != training and rng.random() < 0.7:
        content = json.loads(training.read_bytes())
        content["files"][path.name] = sum_of_parts(changed)
        del content["sha256"]
        training.write_text(json.dumps(content | {"sha256": _hash_json(content)}))


def mutation(
    samples: Path,
    folder: Path,
    number: int,
    target: Target | None = None,
    former: Path | None = None,
) -> tuple[Target, str]:
    """Run one case of a target, or of all targets in turn.

    Returns the case, and a description of the fault that it found, or "".

    former: see `fresh_copy`.
    """
    target = target or TARGETS[number % len(TARGETS)]
    fresh_copy(samples, folder, former)
    prepare(samples, folder, target, random.Random(number))
    done, wrong = run_checked(folder, target.command)
    return target, f"{wrong}\n{done.stderr.decode(errors='replace')}" if wrong else ""
