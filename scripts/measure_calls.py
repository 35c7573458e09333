"""Measure single calls of a tokenizer beside tiktoken, tokenizers and gigatoken; write a record.

The results of all tools are compared before the first is timed. A call of less than 0.2 ms is
repeated within each measurement, and the median of the measurements is kept. A str beyond ASCII is
made anew for each call, because Python keeps its UTF-8 in the str. Packages that are not installed
are left out. Another process measures llmgpu once more with ctypes in place of the module.

    python scripts/measure_calls.py -o calls.json               # on Python's standard library
    python scripts/measure_calls.py -o calls.json --text prose.txt --other multilingual.txt
    python scripts/measure_calls.py --print calls.json          # the record as a table
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from llmgpu import Tokenizer
from llmgpu.bench.engines import describe_machine, package_version
from llmgpu.bench.peers import gigatoken_extension
from llmgpu.bench.tokenizers import load_text
from llmgpu.bpe.interchange.formats import WRITERS
from llmgpu.cpu.extension import VARIABLE, describe
from llmgpu.machine import usable_processors

OWN = "llmgpu"
PEERS = ("tiktoken", "tokenizers", "gigatoken")
LEAST_SECONDS = 2e-4  # of a measurement: a shorter call is repeated
CURVE = [1 << power for power in range(8, 27)]  # bytes of text, up to 64 MB
CURVE_RUNS = 21
THREADS, THREAD_BYTES = 8, 20_000
SAMPLE_BYTES = 8_000_000  # of text; longer texts repeat it

Call = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Row:
    """A call, and how each tool does it.

    make: returns a new argument. calls: by engine, functions of the argument. plain: brings a
    result into the form that is compared. items: results of one call, by which its time is divided.
    """

    name: str
    make: Callable[[], Any]
    calls: dict[str, Call]
    plain: Callable[[Any], Any] = list
    items: int = 1


def measure(
    make: Callable[[], Any], call: Call, seconds: float, least_runs: int = 0
) -> list[float]:
    """Return the seconds of a call in each of several measurements, about `seconds` in all."""
    argument = make()
    call(argument)
    start = time.perf_counter()
    call(argument)
    once = time.perf_counter() - start
    repeats = max(1, round(LEAST_SECONDS / max(once, 1e-8)))
    least_runs = least_runs or (3 if once > 0.5 else 7)
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < least_runs or (time.perf_counter() < end and len(found) < 400):
        arguments = [make() for _ in range(repeats)]
        start = time.perf_counter()
        for argument in arguments:
            call(argument)
        found.append((time.perf_counter() - start) / repeats)
    return found


def ints(ids: Any) -> list[int]:
    return [*map(int, ids)]


def rows_of_ints(rows: Any) -> list[list[int]]:
    return [ints(row) for row in rows]


def fresh(text: str) -> Callable[[], str]:
    """Return a function that returns a text, as a new str if Python would keep its UTF-8."""
    return (lambda: text) if text.isascii() else (lambda: (text + "a")[:-1])


class Tools:
    """Tokenizers with one vocabulary: llmgpu's, and those of the peers that are installed."""

    def __init__(self, vocabulary: str, with_peers: bool) -> None:
        self.own = Tokenizer.load(vocabulary, "cpu")
        self.own.encode("opens the engine")
        self.peers: dict[str, Any] = {}
        for name in PEERS if with_peers else ():
            if package_version(name) is not None:
                self.peers[name] = self._open(name)

    def _open(self, name: str) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            if name == "tiktoken":
                return self.own.as_tiktoken()
            path = Path(folder, f"v.{'json' if name == 'tokenizers' else name}")
            kind = "huggingface" if name == "tokenizers" else "tiktoken"
            WRITERS[kind].write(self.own.vocabulary, path, note=lambda _: None)
            if name == "tokenizers":
                return importlib.import_module(name).Tokenizer.from_file(str(path))
            return gigatoken_extension().BPETokenizer.from_tiktoken(str(path), "gpt4")

    def calls(self, own: dict[str, Call], **peers: Callable[[Any], Call]) -> dict[str, Call]:
        """Return the calls of a row; peers: functions that take the peer and return the call."""
        made = {name: make(self.peers[name]) for name, make in peers.items() if name in self.peers}
        return own | made


def encoding_rows(tools: Tools, text: str, other: str) -> list[Row]:
    own = tools.own
    rows = []
    sizes = [(12, "12 bytes"), (1_000, "1 kB"), (20_000, "20 kB"), (100_000, "100 kB")]
    sizes += [(200_000, "200 kB"), (2_000_000, "2 MB")]
    texts = [(f"encode {name}", text[5_000 : 5_000 + size]) for size, name in sizes]
    texts += [
        (f"encode {name}, not ASCII", other[5_000 : 5_000 + size])
        for size, name in ((700, "1 kB"), (70_000, "100 kB"), (1_400_000, "2 MB"))
    ]
    for name, each in texts:
        rows.append(
            Row(
                name,
                fresh(each),
                tools.calls(
                    {OWN: own.encode, f"{OWN}, a list": lambda text: own.encode(text, dtype=list)},
                    tiktoken=lambda peer: peer.encode_ordinary,
                    tokenizers=lambda peer: (
                        lambda text: peer.encode(text, add_special_tokens=False).ids
                    ),
                    gigatoken=lambda peer: peer.encode,
                ),
                ints,
            )
        )
    documents = [text[k : k + 1_000] for k in range(0, 1_000_000, 1_000)]
    processors = usable_processors()
    batch = tools.calls(
        {
            OWN: own.encode_batch,
            f"{OWN}, lists": lambda texts: own.encode_batch(texts, dtype=list),
        },
        tiktoken=lambda peer: partial(peer.encode_ordinary_batch, num_threads=processors),
        tokenizers=lambda peer: (
            lambda texts: [
                each.ids for each in peer.encode_batch_fast(texts, add_special_tokens=False)
            ]
        ),
    )
    if "gigatoken" in tools.peers and importlib.util.find_spec("awkward"):
        batch["gigatoken"] = tools.peers["gigatoken"].encode_batch
    if "gigatoken" in tools.peers:
        batch["gigatoken, lists"] = tools.peers["gigatoken"].encode_batch_list
    rows.append(Row("encode_batch, 1000 x 1 kB", lambda: documents, batch, rows_of_ints))
    return rows


def decoding_rows(tools: Tools, text: str) -> list[Row]:
    own = tools.own
    ids = own.encode(text[:2_000_000], dtype=list)
    array, whole = own.encode(text[5_000:105_000]), own.encode(text[5_000:105_000], dtype=list)
    rows_of_ids = [ids[k : k + 200] for k in range(0, 200_000, 200)]

    def decode(given: Any) -> dict[str, Call]:
        return tools.calls(
            {OWN: own.decode},
            tiktoken=lambda peer: peer.decode,
            tokenizers=lambda peer: lambda ids: peer.decode(ids, skip_special_tokens=False),
            gigatoken=lambda peer: lambda ids: peer.decode(ids).decode(errors="replace"),
        )

    arrays = {name: call for name, call in decode(array).items() if name in (OWN, "gigatoken")}
    batch = tools.calls(
        {OWN: own.decode_batch},
        tiktoken=lambda peer: peer.decode_batch,
        tokenizers=lambda peer: lambda rows: peer.decode_batch(rows, skip_special_tokens=False),
    )
    stream: dict[str, Call] = {OWN: lambda ids: [*own.decode_stream(ids)]}
    if "tokenizers" in tools.peers:
        peer, opened = tools.peers["tokenizers"], importlib.import_module("tokenizers").decoders

        def step(ids: Any) -> list[str]:
            made = opened.DecodeStream(skip_special_tokens=False)
            return [made.step(peer, number) or "" for number in ids]

        stream["tokenizers"] = step
    return [
        Row("decode 8 ids", lambda: ids[:8], decode(whole), str),
        Row("decode 100 kB, a list", lambda: whole, decode(whole), str),
        Row("decode 100 kB, an array", lambda: array, arrays, str),
        Row("decode_batch, 1000 x 200 ids", lambda: rows_of_ids, batch),
        Row("decode_stream, an id", lambda: ids[:1_000], stream, "".join, items=1_000),
    ]


def other_rows(tools: Tools, text: str) -> list[Row]:
    own, short = tools.own, text[5_000:6_000]

    def offsets(peer: Any) -> Call:
        return lambda text: peer.encode(text, add_special_tokens=False).offsets

    def starts(peer: Any) -> Call:
        return lambda text: peer.decode_with_offsets(peer.encode_ordinary(text))[1]

    spans = tools.calls(
        {OWN: lambda text: own.encode_with_offsets(text)[1]}, tokenizers=offsets, tiktoken=starts
    )
    count = tools.calls(
        {OWN: own.count},
        tiktoken=lambda peer: lambda text: len(peer.encode_ordinary(text)),
        tokenizers=lambda peer: lambda text: len(peer.encode(text, add_special_tokens=False)),
        gigatoken=lambda peer: lambda text: len(peer.encode(text)),
    )
    number = tools.calls(
        {OWN: own.token_to_id},
        tiktoken=lambda peer: peer.encode_single_token,
        tokenizers=lambda peer: peer.token_to_id,
    )

    def first(rows: Any) -> list[int]:  # tiktoken returns only where tokens begin
        return [int(row[0]) if np.ndim(row) else int(row) for row in rows]

    return [
        Row("offsets of 1 kB", lambda: short, spans, first),
        Row("count 1 kB", lambda: short, count, int),
        Row("token_to_id", lambda: "hello", number, int),
    ]


def measure_rows(rows: Sequence[Row], seconds: float) -> list[dict[str, Any]]:
    """Return the results of rows: each tool in turn, if its result is that of llmgpu."""
    results = []
    for row in rows:
        expected = row.plain(row.calls[OWN](row.make()))
        equal = {name: row.plain(call(row.make())) == expected for name, call in row.calls.items()}
        for name, call in row.calls.items():
            result: dict[str, Any] = {"call": row.name, "engine": name, "correct": equal[name]}
            if equal[name]:
                times = [spent / row.items for spent in measure(row.make, call, seconds)]
                result["seconds"] = {"median": statistics.median(times), "min": min(times)}
                result["runs"] = len(times)
            results.append(result)
            print(row.name, name, result.get("seconds", "differs"), file=sys.stderr)
    return results


def measure_curve(own: Tokenizer, text: str) -> list[dict[str, Any]]:
    """Return the medians of encoding the beginnings of a text, of doubled sizes."""
    found = []
    for size in CURVE:
        part = text[:size]
        times = measure(fresh(part), own.encode, 0.0, CURVE_RUNS)
        found.append({"bytes": size, "seconds": statistics.median(times), "runs": len(times)})
    return found


def measure_threads(own: Tokenizer, text: str, calls: int) -> dict[str, Any]:
    """Return the seconds of one thread, and of several that do as much each, a text at a time."""
    texts = [text[k * THREAD_BYTES : (k + 1) * THREAD_BYTES] for k in range(THREADS)]

    def work(number: int) -> None:
        for _ in range(calls):
            own.encode(texts[number])

    def run(count: int) -> float:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - start

    run(THREADS)
    one, several = [], []
    for _ in range(9):
        one.append(run(1))
        several.append(run(THREADS))
    medians = statistics.median(one), statistics.median(several)
    return {
        "threads": THREADS,
        "calls": calls,
        "text_bytes": THREAD_BYTES,
        "one_thread_seconds": medians[0],
        "all_threads_seconds": medians[1],
        "times_one_thread": THREADS * medians[0] / medians[1],
    }


def read_text(path: str | None, limit: int) -> str:
    return load_text([path] if path else [], limit).decode()


def measure_all(options: argparse.Namespace) -> dict[str, Any]:
    """Return what this process measures, by the extension module or by ctypes."""
    text = read_text(options.text, SAMPLE_BYTES).encode("ascii", "ignore").decode()
    other = read_text(options.other, SAMPLE_BYTES) if options.other else ""
    text *= -(-CURVE[-1] // len(text))
    tools = Tools(options.vocabulary, not options.own)
    seconds = 0.02 if options.quick else 0.4
    rows = [row for row in encoding_rows(tools, text, other) if other or "ASCII" not in row.name]
    rows += [*decoding_rows(tools, text), *other_rows(tools, text)]
    return {
        "interface": describe(),
        "results": measure_rows(rows, seconds),
        "curve": measure_curve(tools.own, text),
        "threads": measure_threads(tools.own, text, 50 if options.quick else 1_000),
    }


def make_record(options: argparse.Namespace) -> dict[str, Any]:
    """Return the record: this process with peers, and another process with ctypes."""
    arguments = ["--vocabulary", options.vocabulary, *(["--quick"] if options.quick else [])]
    for name in ("text", "other"):
        value = getattr(options, name)
        arguments += [f"--{name}", value] if value else []
    record = {
        "what": "single calls: the medians of the seconds that a call takes",
        "machine": dataclasses.asdict(describe_machine([])),
        "vocabulary": options.vocabulary,
        "text": {
            "ASCII": options.text or "Python's standard library",
            "not ASCII": options.other or "",
        },
        "versions": {name: package_version(name) for name in PEERS},
        "extension module": measure_all(options),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ctypes.json")
        command = [sys.executable, __file__, "--own", "-o", str(path), *arguments]
        subprocess.run(command, env=os.environ | {VARIABLE: "ctypes"}, check=True)
        record["ctypes"] = json.loads(path.read_text(encoding="utf-8"))
    return record


def print_table(record: dict[str, Any]) -> None:
    """Print microseconds: a line for each call, a column for each engine."""
    by_call: dict[str, dict[str, float]] = {}
    for part, results in (("", record["extension module"]), (", ctypes", record["ctypes"])):
        for result in results["results"]:
            named = by_call.setdefault(result["call"], {})
            named[result["engine"] + part] = result.get("seconds", {}).get("median", float("nan"))
    for name, engines in by_call.items():
        shown = "  ".join(f"{engine} {1e6 * spent:.2f}" for engine, spent in engines.items())
        print(f"{name:30s}{shown}")
    for part in ("extension module", "ctypes"):
        curve = record[part]["curve"]
        ratios = [
            f"{after['bytes']}: {after['seconds'] / before['seconds']:.2f}"
            for before, after in pairwise(curve)
        ]
        print(f"{part}, times the half of the text: {'  '.join(ratios)}")
        print(f"{part}, {THREADS} threads: {record[part]['threads']['times_one_thread']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("-o", "--output", help="file of the record")
    parser.add_argument("--text", help="ASCII text; by default Python's standard library")
    parser.add_argument("--other", help="text beyond ASCII; without it these calls are left out")
    parser.add_argument("--vocabulary", default="cl100k", help="a file or a published name")
    parser.add_argument("--quick", action="store_true", help="a smoke test")
    parser.add_argument("--own", action="store_true", help="measure no peers, and one interface")
    parser.add_argument("--print", help="print the table of a record, and measure nothing")
    options = parser.parse_args()
    if options.print:
        print_table(json.loads(Path(options.print).read_text(encoding="utf-8")))
        return
    record = measure_all(options) if options.own else make_record(options)
    if options.output:
        text = json.dumps(record, indent=1) + "\n"
        Path(options.output).write_text(text, encoding="utf-8")
    if not options.own:
        print_table(record)


if __name__ == "__main__":
    main()
