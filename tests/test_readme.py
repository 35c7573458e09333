"""The examples of the README and of the guide run, and their figures were recorded."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from llmgpu.backend import list_adapters
from llmgpu.cli import COMMANDS
from tests.text.test_remote import Ranges, serve

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
RECORDED = DOCS / "recorded"
BENCHMARKS = DOCS / "benchmarks.md"
RECIPES = DOCS / "recipes.md"
PAGES = [README, *sorted(DOCS.glob("*.md"))]
FOR_DEVELOPERS = [ROOT / f"{name}.md" for name in ("ARCHITECTURE", "CONTRIBUTING", "SECURITY")]

BLOCK = re.compile(
    r"^(?:<!-- needs (\w+) -->\n)?```(console|powershell|python)\n(.*?)^```",
    re.MULTILINE | re.DOTALL,
)
ELSEWHERE = "https://example.com"  # in examples, a server that has the files of the page
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
MAX_README_LINES = 200


class Example(NamedTuple):
    """A command or a program, the output shown below it, and what it needs: see `is_here`."""

    command: list[str]
    shown: str
    needed: str


def for_bash(part: str) -> str:
    """Translate a command for PowerShell, which bash would read in the same way but for two signs.

    A backtick at the end of a line continues a command, and `$env:NAME = VALUE` sets a variable.
    """
    joined = re.sub(r"`\n\s*", "", part)
    return re.sub(r"\$env:(\w+) = ", r"export \1=", joined)


PROMPTS: dict[str, tuple[str, Callable[[str], str]]] = {
    "console": (r"^\$ ", str),
    "powershell": (r"^PS> ", for_bash),
}


def examples(page: Path) -> list[Example]:
    """Return the commands and programs of a page in order."""
    found: list[Example] = []
    for needed, kind, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "python":
            found.append(Example([sys.executable, "-c", block], "", needed))
            continue
        prompt, from_shell = PROMPTS[kind]
        for part in re.split(prompt, block, flags=re.MULTILINE)[1:]:
            command, _, output = from_shell(part).partition("\n")
            found.append(Example(["bash", "-o", "pipefail", "-c", command], output, needed))
    return found


def is_here(needed: str) -> bool:
    """Whether this machine has a package, or an adapter."""
    if needed == "adapter":
        return bool(list_adapters())
    return importlib.util.find_spec(needed) is not None


WITH_EXAMPLES = [page for page in PAGES if examples(page)]


def test_most_pages_have_examples() -> None:
    assert README in WITH_EXAMPLES
    assert len(WITH_EXAMPLES) >= 8
    assert sum(len(examples(page)) for page in WITH_EXAMPLES) >= 50


def test_commands_for_powershell_are_read_by_bash(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    block = "PS> $env:ONE = 'a b'; printf '%s\\n' `\n    $ONE\na\nb\nPS> echo 'two'\ntwo\n"
    page.write_text(f"```powershell\n{block}```\n\n```powershell\nnot run\n```\n")
    found = examples(page)
    assert [each.shown for each in found] == ["a\nb\n", "two\n"]
    for each in found:
        done = subprocess.run(each.command, capture_output=True, text=True)
        assert done.stdout == each.shown, done.stderr
    assert sum("PS> " in line for line in (DOCS / "windows-macos.md").read_text().split("\n")) > 5


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=() if page == README else pytest.mark.slow)
        for page in WITH_EXAMPLES
    ],
)
def test_examples_run_and_print_what_they_show(page: Path, tmp_path: Path) -> None:
    scripts = str(Path(sys.executable).parent)
    environment = os.environ | {
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "LLMGPU_DEVICE": "cpu",
        "OPENBLAS_NUM_THREADS": "1",  # threads of models this small only wait for each other
    }
    with serve(tmp_path, Ranges) as server:
        for command, shown, needed in examples(page):
            if needed and not is_here(needed):
                continue  # `test_what_examples_need_is_here` says so
            done = subprocess.run(
                [word.replace(ELSEWHERE, server) for word in command],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == 0, f"{command[-1]}\n{done.stderr}"
            if shown:
                assert done.stdout.rstrip("\n") == shown.rstrip("\n"), command[-1]


@pytest.mark.parametrize(
    "needed", sorted({each.needed for page in PAGES for each in examples(page) if each.needed})
)
def test_what_examples_need_is_here(needed: str) -> None:
    if not is_here(needed):
        pytest.skip(f"examples of the guide that need {needed} are not run")


@pytest.mark.slow
def test_programs_have_types(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    programs = [
        each.command[-1]
        for page in PAGES
        for each in examples(page)
        if each.command[0] == sys.executable
    ]
    for number, program in enumerate(programs):
        (tmp_path / f"program_{number}.py").write_text(program, encoding="utf-8")
    assert len(programs) >= 8
    strict = ("--strict", "--ignore-missing-imports", "--config-file=")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *strict, str(tmp_path)],
        cwd=ROOT,  # where the types of the package may be known already
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= MAX_README_LINES


@pytest.mark.parametrize("page", [*PAGES, *FOR_DEVELOPERS], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        if anchor:
            headings = HEADING.findall(target.read_text(encoding="utf-8"))
            assert anchor in {_anchor(heading) for heading in headings}, link


def test_the_reference_has_every_command() -> None:
    page = (DOCS / "command-line.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^```{command-help} (.+)$", page, re.MULTILINE)) == sorted(COMMANDS)


def test_messages_that_the_guide_quotes_are_those_of_the_code() -> None:
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^\*\*`([^`]+)`", page, re.MULTILINE)
    assert len(quoted) >= 6
    messages = {text for path in (ROOT / "llmgpu").rglob("*.py") for text in texts_in(path)}
    for message in quoted:
        for fragment in message.split("..."):
            assert any(fragment.strip() in text for text in messages), message


def texts_in(path: Path) -> Iterator[str]:
    """Yield the strings in a file; what a formatted one inserts is left out."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(map(_constant, node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _constant(part: ast.expr) -> str:
    """Return a part of a formatted string: its text, or the option that it spells, or nothing."""
    if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Call):
        is_option = isinstance(part.value.func, ast.Name) and part.value.func.id == "spelled"
        part = part.value.args[0] if is_option else part
    return str(part.value) if isinstance(part, ast.Constant) else ""


def _anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def recorded_results() -> dict[str, list[dict[str, Any]]]:
    """Return what was measured on each machine, by the name of its record."""
    return {
        path.stem: [
            result
            for result in json.loads(path.read_text(encoding="utf-8"))["results"]
            if "seconds" in result
        ]
        for path in sorted(RECORDED.glob("*.json"))
    }


def large_text_results() -> list[dict[str, Any]]:
    path = RECORDED / "growth" / "nvidia-h200-tokenize.json"
    results: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["results"]
    return results


def test_numbers_are_those_of_the_recorded_runs() -> None:
    records = recorded_results()
    assert len(records) == 3
    results = [result for record in records.values() for result in record]
    text = [r for r in results if r["what"] in ("bpe-train", "tokenize")]
    assert {tuple(row[1:]) for row in table_rows(7)} == {text_row(r) for r in text}
    training = {training_row(r) for r in results if r["what"] == "train"}
    embedding = {embedding_row(r) for r in results if r["what"] == "embedding"}
    shown = table_rows(5)
    steps = {tuple(row[1:]) for row in shown if "cores" in row[0]}
    assert steps == training
    rows = {tuple(row) for row in shown if "cores" not in row[0]}
    assert rows and rows <= embedding


def test_rates_of_large_texts_are_those_of_the_recorded_runs() -> None:
    results = large_text_results()
    assert {r["same_ids_as_gigatoken"] for r in results if "same_ids_as_gigatoken" in r} == {True}
    assert {tuple(row) for row in table_rows(6)} == {large_text_row(r) for r in results}


def test_whole_commands_are_those_recorded() -> None:
    assert table_rows(2) == [
        [f"{result['what']}: {result['engine']}", f"{result['seconds']['median']:.3f}"]
        for name in ("nvidia-h200.json", "nvidia-h200-formats.json")
        for result in json.loads((RECORDED / "commands" / name).read_text("utf-8"))["results"]
    ]


def test_whole_runs_of_training_take_as_long_as_recorded() -> None:
    record = json.loads((RECORDED / "commands" / "nvidia-h200-train.json").read_text("utf-8"))
    often, once = (
        result["seconds"][-1]
        for interval in ("100", "1000")
        for result in record["results"]
        if result.get("commit") == "582856ba"
        and result["command"].endswith(f"--eval-interval {interval}")
    )
    (compiled,) = (
        value
        for result in record["results"]
        for name, value in result.items()
        if name.startswith("PyTorch, compiled")
    )
    seconds = [often, once, compiled["seconds"], compiled["first step"]]
    page = " ".join(BENCHMARKS.read_text("utf-8").split())
    told = page[page.index("the whole command for 1 000 steps") :]
    assert re.findall(r"(\d+\.\d) s\b", told)[:4] == [f"{each:.1f}" for each in seconds]
    assert f"then {compiled['step_milliseconds']:.1f} ms a step" in told


def test_losses_of_small_are_those_of_the_recorded_runs() -> None:
    record = json.loads((RECORDED / "commands" / "nvidia-h200-train.json").read_text("utf-8"))
    (runs,) = (
        r
        for r in record["results"]
        if r["command"].startswith("train --preset small") and "--precision f32" in r
    )
    losses = [
        loss
        for name, value in runs.items()
        if name.startswith(("--precision", "two runs of PyTorch"))
        for loss in (value if isinstance(value, list) else [value])
    ]
    page = " ".join(BENCHMARKS.read_text("utf-8").split())
    told = page[page.index("With version 7 of the arithmetic and a vocabulary") :]
    assert sorted(re.findall(r"\d\.\d{4}", told)[:5]) == sorted(map(str, losses))


def test_writing_in_memory_takes_as_long_as_recorded() -> None:
    record = json.loads((RECORDED / "commands" / "nvidia-h200.json").read_text("utf-8"))
    one, four, reserved = record["writing_a_gb_of_ids_seconds"].values()
    said = f"takes one thread {one} s, and the four {four} s, or {reserved} s where the file"
    assert said in " ".join(BENCHMARKS.read_text(encoding="utf-8").split())


def test_python_starts_as_fast_as_recorded() -> None:
    record = json.loads((RECORDED / "commands" / "nvidia-h200.json").read_text("utf-8"))
    compiled, source = record["python_and_numpy_seconds"].values()
    page = " ".join(BENCHMARKS.read_text(encoding="utf-8").split())
    assert f"takes {compiled} s there with NumPy's bytecode, and {source} s [without]" in page


def test_another_host_takes_as_long_as_the_page_says() -> None:
    records = [
        json.loads((RECORDED / "commands" / name).read_text("utf-8"))
        for name in ("nvidia-h200.json", "nvidia-h200-another-host.json")
    ]
    one, other = (
        {(r["what"], r["engine"]): r["seconds"]["median"] for r in record["results"]}
        for record in records
    )
    ratios = [other[what] / seconds for what, seconds in one.items()]
    assert other.keys() == one.keys() and records[0]["commit"] == records[1]["commit"]
    times = f"{min(ratios):.1f} to {max(ratios):.1f} times as long"
    assert f"the same version, and gigatoken, took {times}" in " ".join(
        BENCHMARKS.read_text(encoding="utf-8").split()
    )


def test_start_up_is_that_of_the_recorded_runs() -> None:
    record = json.loads((RECORDED / "startup" / "nvidia-h200.json").read_text(encoding="utf-8"))
    assert table_rows(8) == [startup_row(result) for result in record["results"]]


KERNELS = (  # their names, whether Dawn ran them, and what the page says of the microseconds
    ("linear, feed-forward", False, "takes {} µs in float32 through wgpu"),
    ("linear, feed-forward", True, "through wgpu, {} µs through Dawn"),
    ("linear, feed-forward, half-precision factors", True, "and {} µs on matrix units; attention"),
    ("attention", False, "; attention {},"),
    ("attention", True, ", {} and"),
    ("attention, in half precision", True, "and {} µs; its gradients"),
    ("attention_backward", False, "its gradients {},"),
    ("attention_backward", True, ", {} and"),
    ("attention_backward, in half precision", True, "and {} µs."),
    ("rms_norm", True, "`rms_norm` {} instead"),
    ("rms_norm", False, "instead of {} µs"),
)


def test_kernels_are_those_of_the_recorded_runs() -> None:
    record = json.loads((RECORDED / "kernels" / "nvidia-h200.json").read_text(encoding="utf-8"))
    assert all(result["correct"] is not False for result in record["results"])
    found = {
        (result["variant"], result["engine"].endswith("with Dawn")): result["kernels"]["total"]
        for result in record["results"]
        if result["correct"]
    }
    text = " ".join(BENCHMARKS.read_text(encoding="utf-8").split())
    for variant, with_dawn, said in KERNELS:
        assert said.format(round(1e6 * found[variant, with_dawn])) in text
    path = RECORDED / "kernels" / "nvidia-h200-products.json"
    products = json.loads(path.read_text(encoding="utf-8"))["results"]
    forward, by_input, by_weight = (round(each["teraflops"]["median"]) for each in products)
    assert forward == by_input
    assert f"at {forward} TFLOP/s forward and by input, and at {by_weight} by weight" in text
    path = RECORDED / "kernels" / "nvidia-h100-step.json"
    for step in json.loads(path.read_text(encoding="utf-8"))["results"]:
        for name in ("milliseconds", "before"):
            assert f"{statistics.median(step[name]):.2f}" in text


def test_precisions_and_generating_are_those_of_the_recorded_runs() -> None:
    record = json.loads((RECORDED / "precision" / "nvidia-h200.json").read_text(encoding="utf-8"))
    assert {tuple(row) for row in table_rows(4)} == {precision_row(r) for r in record["steps"]}
    rates: dict[str, list[str]] = {}
    for result in record["generating"]["results"]:
        rates.setdefault(result["machine"], []).append(str(result["tokens_per_second"]))
    assert {row[0]: row[1:] for row in table_rows(3)} == rates
    text = BENCHMARKS.read_text(encoding="utf-8")
    for result in record["generating"]["half_precision"]["results"]:
        assert f" {result['tokens_per_second']}" in text
    losses = [result["held_out_loss"] for result in record["training"]["results"]]
    assert max(losses) < 1.005 * min(losses)
    for loss in losses:
        assert f"{loss:.4f}" in text


def test_recipes_are_those_of_the_recorded_runs() -> None:
    record = json.loads((RECORDED / "recipes" / "nvidia-h200.json").read_text(encoding="utf-8"))
    text = RECIPES.read_text(encoding="utf-8")
    found: dict[tuple[str, str, str], list[float]] = {}
    for run in record["runs"]:
        preset = f"`{run['preset']}`, {run['steps']} steps"
        named = run["recipe"], preset, run.get("variant", "")
        found.setdefault(named, []).append(run["bits_per_byte"][-1][1])
        assert f"{run['tokens']:,}".replace(",", " ") in text
    means = {named: f"{sum(values) / len(values):.3f}" for named, values in found.items()}
    columns = ("nanogpt", "llmgpu adamw", "llmgpu muon", "nanochat")
    for preset, _, *shown in table_rows(6, RECIPES):
        assert shown == [means.pop((recipe, preset, "")) for recipe in columns]
    assert all(mean in text for (_, preset, _), mean in means.items() if "tiny" in preset)


def test_the_tables_of_recipes_are_those_that_the_script_prints() -> None:
    text = RECIPES.read_text(encoding="utf-8")
    for name, before in {"search": text, "defaults": text.split("\n## All recipes")[0]}.items():
        record = str(RECORDED / "recipes" / f"{name}.jsonl")
        command = [sys.executable, "scripts/recipes.py", "table", record]
        done = subprocess.run(command, cwd=DOCS.parent, capture_output=True, text=True, check=True)
        assert before.endswith(done.stdout)
    # Figures of the final text: a row of the page has the tiny and the small model.
    found: dict[str, list[str]] = {}
    for preset, name, _, _, final in table_rows(5, RECIPES):
        if name.startswith("**") and preset != "`gpt2`":
            found.setdefault(name, []).insert(preset == "`small`", final)
    shown = [cells for _, *cells in table_rows(3, RECIPES) if "±" in cells[0]]
    assert sorted(shown) == sorted(
        each for each in found.values() if len(each) == 2 and "±" in each[0]
    )


def test_long_runs_are_those_recorded() -> None:
    path = RECORDED / "recipes" / "nvidia-h200-long.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    values = [{step: bits for step, bits, _ in run["bits_per_byte"]} for run in record["runs"]]
    rows = [row for row in table_rows(3, RECIPES) if row[0].endswith(" steps")]
    assert [row[0] for row in rows] == [f"{step:,} steps".replace(",", " ") for step in values[0]]
    for (_, *shown), step in zip(rows, values[0], strict=True):
        assert shown == [f"{bits[step]:.3f}" for bits in values]
    text = " ".join(RECIPES.read_text(encoding="utf-8").split())
    for run in (*record["runs"], *record["earlier_runs"]):
        assert f"{run['steps']:,} steps".replace(",", " ") in text
        assert f"{run['seconds']:.0f}" in text
    assert all(f"{run['bits_per_byte']:.3f}" in text for run in record["earlier_runs"])
    assert all(f"{run['tokens_per_second'] // 1000} 000" in text for run in record["runs"])
    for result in record["table_rates"]:
        assert all(f"{bits:.3f}" in text for bits in result["bits_per_byte"].values())


def test_the_comparison_in_the_readme_is_that_of_the_recorded_runs() -> None:
    records = recorded_results()
    shown = {
        row[0].replace("`", ""): [cell.strip("*") for cell in row[1:]]
        for row in table_rows(7, README)
        if re.search(r"\d", "".join(row[1:]))
    }
    cores, h200 = records["two-cpu-cores"], records["nvidia-h200"]
    text = records["nvidia-h200-text"]
    half, autocast = "llmgpu, f16", "torch 2.11.0, bfloat16 autocast"
    steps = precise_steps(tokens=8192)
    own, eager, compiled = (
        f"{steps[half]:.1f}",
        f"{steps[autocast]:.1f}",
        steps[f"{autocast}, compiled"],
    )
    assert shown == {
        "train, two CPU cores, MB/s": best_rates(cores, "bpe-train"),
        "train, H200 and 16 cores, MB/s": best_rates(text, "bpe-train"),
        "tokenize, two CPU cores, MB/s": best_rates(cores, "tokenize"),
        "tokenize, H200 and 16 cores, MB/s": best_rates(text, "tokenize"),
        "tokenize 3 GB, H200 and 16 cores, GB/s": large_rates(large_text_results()),
        "step of gpt2, H200, float32, ms": step_times(h200, "gpt2"),
        "step of gpt2, H200, tensor cores, ms": [own, *[NOTHING] * 4, eager],
        "step of tiny, two CPU cores, ms": step_times(cores, "tiny"),
    }
    runs = precise_runs(tokens=8192)
    compared = " against ".join(
        f"{len(each)} runs of {min(each)} to {max(each)} ms"
        for each in (runs[f"{autocast}, compiled"], runs[half])
    )
    said = f"takes {compiled} ms, {compiled / float(own):.2f} of the time of llmgpu ({compared})"
    assert said in " ".join(README.read_text(encoding="utf-8").split())


COLUMNS = ("llmgpu", "tokenizers", "tiktoken", "rustbpe", "gigatoken", "torch")
NOTHING = "–"


def column_of(result: dict[str, Any]) -> str:
    name = engine_name(result).split(" ")[0]
    return name if name in COLUMNS else "llmgpu"


def best_rates(results: list[dict[str, Any]], what: str) -> list[str]:
    """Return a row: the highest rate of each tool on the largest text, llmgpu's best engine."""
    chosen = [r for r in results if r["what"] == what and r.get("variant") != "greedy"]
    largest = max(r["text_bytes"] for r in chosen)
    best: dict[str, float] = {}
    for result in chosen:
        if result["text_bytes"] == largest:
            column = column_of(result)
            best[column] = max(best.get(column, 0.0), result["mb_per_second"])
    return [f"{best[column]:.1f}" if column in best else NOTHING for column in COLUMNS]


def large_rates(results: list[dict[str, Any]]) -> list[str]:
    rates = {
        column_of(r): r["text_bytes"] / r["seconds"]["median"] / 1e9
        for r in results
        if (r["text"], r["text_bytes"]) == ("English", 3_000_000_000)
    }
    return [f"{rates[column]:.1f}" if column in rates else NOTHING for column in COLUMNS]


def precise_steps(tokens: int) -> dict[str, float]:
    """Return the median milliseconds of a step on an H200 by engine and precision."""
    return {name: statistics.median(runs) for name, runs in precise_runs(tokens).items()}


def precise_runs(tokens: int) -> dict[str, list[float]]:
    """Return the milliseconds of all runs of a step on an H200 by engine and precision."""
    record = json.loads((RECORDED / "precision" / "nvidia-h200.json").read_text(encoding="utf-8"))
    steps = [result for result in record["steps"] if result["tokens"] == tokens]
    return {result["engine"]: result["milliseconds"]["runs"] for result in steps}


def step_times(results: list[dict[str, Any]], preset: str) -> list[str]:
    best: dict[str, float] = {}
    for result in results:
        if result["what"] == "train" and result["job"].startswith(preset):
            column = column_of(result)
            seconds = result["seconds"]["median"]
            best[column] = min(best.get(column, seconds), seconds)
    return [f"{best[column] * 1e3:.1f}" if column in best else NOTHING for column in COLUMNS]


def script_of(name: str) -> Any:
    """Return a script as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec and spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_the_picture_is_drawn_from_the_recorded_runs() -> None:
    drawn = script_of("draw_peers").draw(RECORDED)
    assert drawn == (DOCS / "peers.svg").read_text(encoding="utf-8")


def test_times_to_a_loss_are_those_recorded() -> None:
    script = script_of("draw_time_to_loss")
    assert script.draw() == (DOCS / "time-to-loss.svg").read_text(encoding="utf-8")
    record = json.loads(script.RECORD.read_text(encoding="utf-8"))
    recorded = {
        (f"{run['steps']:,}".replace(",", " "), f"{run['loss']:.3f}", f"{run['seconds']:.1f}")
        for run in [*record["llmgpu"], *record["pytorch"]]
    }
    page = (DOCS / "recipes.md").read_text(encoding="utf-8").split("## The time to a loss")[1]
    page = page.split("\n## ")[0]
    rows = re.findall(r"^\| .+ \| ([\d ]+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert len(rows) == 5 and set(rows) <= recorded


def test_single_calls_are_those_recorded() -> None:
    script = script_of("draw_calls")
    assert table_rows(9) == script.rows()
    assert script.draw() == (DOCS / "calls.svg").read_text(encoding="utf-8")
    records = script.load()
    assert {
        result["correct"]
        for record in records.values()
        for interface in script.INTERFACES
        for result in record[interface]["results"]
    } == {True}
    page = " ".join(BENCHMARKS.read_text(encoding="utf-8").split())
    times = [
        f"{records['16 cores'][interface]['threads']['times_one_thread']:.1f} times as much"
        for interface in script.INTERFACES
    ]
    assert f"{times[0]} as one thread on the 16 cores, and {times[1]} through ctypes" in page
    assert f"a text of twice the size takes at most {script.steepest():.1f} times" in page


def table_rows(columns: int, page: Path = BENCHMARKS) -> list[list[str]]:
    """Return the rows of all tables of a page with that many columns, without their heads."""
    lines = page.read_text(encoding="utf-8").splitlines()
    numbers = [i for i, line in enumerate(lines) if line.count("|") == columns + 1]
    heads = {i - 1 for i in numbers if lines[i].startswith("| ---")}
    rules = {i + 1 for i in heads}
    return [lines[i].strip("| ").split(" | ") for i in numbers if i not in heads | rules]


def engine_name(result: dict[str, Any]) -> str:
    name: str = result["engine"].split(" (")[0]
    return name


def text_row(result: dict[str, Any]) -> tuple[str, ...]:
    variant = result.get("variant", "")
    way = variant if variant in ("", "greedy") else f"{variant.split()[0]} slots"
    return (
        result["what"],
        engine_name(result) + (way and f", {way}"),
        f"{result['text_bytes'] / 1e6:.1f}",
        str(result["vocab_size"]),
        f"{result['seconds']['median']:.3f}",
        f"{result['mb_per_second']:.2f}",
    )


def large_text_row(result: dict[str, Any]) -> tuple[str, ...]:
    seconds = result["seconds"]
    return (
        result["text"],
        f"{result['text_bytes'] / 1e9:.1f}",
        result["engine"],
        str(len(seconds["runs"])),
        f"{seconds['median']:.3f}",
        f"{result['text_bytes'] / seconds['median'] / 1e9:.2f}",
    )


def startup_row(result: dict[str, Any]) -> list[str]:
    phases = {name: times["median"] for name, times in result["phases"].items()}
    floor, rest = phases.pop("python and NumPy"), phases.pop("the rest")
    named = [phases.pop(name, 0.0) for name in ("open device", "compile kernels")]
    seconds = [result["seconds"]["median"], floor, *named, sum(phases.values()), rest]
    return [result["job"], result["engine"], *(f"{number:.3f}" for number in seconds)]


def precision_row(result: dict[str, Any]) -> tuple[str, ...]:
    milliseconds = result["milliseconds"]["median"]
    return (
        f"{result['tokens'] // 1024} x 1024",
        result["engine"],
        f"{milliseconds:.1f}",
        f"{result['tokens'] / milliseconds * 1e3:.0f}",
    )


def training_row(result: dict[str, Any]) -> tuple[str, ...]:
    return (
        result["job"].split(":")[0],
        f"{engine_name(result)}, {result['variant']}",
        f"{result['seconds']['median'] * 1e3:.1f}",
        f"{result['tokens_per_second']:.0f}",
    )


def embedding_row(result: dict[str, Any]) -> tuple[str, ...]:
    return (
        result["job"].split(":")[0],
        result["variant"],
        engine_name(result),
        f"{result['seconds']['median'] * 1e6:.1f}",
        f"{result['bytes_per_second'] / 1e12:.2f}",
    )
