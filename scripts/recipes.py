"""Train small models by recipes, and print the table of recipes on docs/recipes.md.

A recipe is a line of JSON: a preset, options of `llmgpu train` by the names of their fields, and
knobs, which are changes without an option:

- G_lr, G_decay, G_beta1, G_beta2, G_init: for the group G of weights the peak rate, the weight
  decay, AdamW's decays, and the standard deviation of the initial values (for norms the value).
- schedule, down: the rate falls in the last share `down` of the steps, by the law "linear", "sqrt"
  or "square".
- momentum, momentum_from, momentum_steps: the options --momentum, --momentum-start and
  --momentum-steps of recipes that are older than these options.
- qk_norm: norms of the heads of queries and keys, as in Qwen3.

The knobs live here, not in the package: an experiment should not add an option to every run. A
recipe with "defaults": true begins with the defaults of `llmgpu train`, any other recipe with the
options in BEFORE.

    python scripts/recipes.py cut prose-en.txt FOLDER
    python scripts/recipes.py run FOLDER --device gpu < recipes.jsonl >> results.jsonl
    python scripts/recipes.py table results.jsonl
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from llmgpu.backend import Backend, select_backend
from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.lm import model, trainer, updates
from llmgpu.lm.config import EMBEDDING, FINAL_NORM, OUTPUT, Weight
from llmgpu.lm.data.batches import Batches, open_token_files, token_bytes
from llmgpu.lm.ops.optimizer import HYPER
from llmgpu.lm.ops.tensor import Tensor
from llmgpu.lm.options import TrainOptions
from llmgpu.lm.runs.run import choose_arithmetic
from llmgpu.lm.runs.settings import new_settings

PLACES = 50  # stretches of the text, evenly spread
TRAINING, FINAL, CHOICE = 24_300_000, 481_088, 240_000  # bytes of all stretches together
GROUPS = ("embedding", "output", "final_norm", "norm", "residual", "hidden")
Row = dict[str, Any]
BEFORE: Row = {  # the defaults when the search began
    **{"schedule": "cosine", "beta2": 0.95, "table_rate": 10.0, "table_decay": 1.0},
    **{"table_beta1": 0.0, "momentum_start": 0.95, "momentum_steps": 0},
}


def cut(text: Path, folder: Path) -> None:
    """Cut a text into three: to train on, to choose recipes by, and for the final figures."""
    data = text.read_bytes()
    parts: dict[str, list[bytes]] = {"train": [], "final": [], "choice": []}
    for place in range(PLACES):
        begin = place * (len(data) // PLACES)
        begin = data.index(b"\n", begin) + 1 if begin else 0
        for part, size in zip(parts, (TRAINING, FINAL, CHOICE), strict=True):
            end = data.index(b"\n", begin + size // PLACES) + 1
            parts[part].append(data[begin:end])
            begin = end
    for part, pieces in parts.items():
        (folder / f"{part}.txt").write_bytes(b"".join(pieces))


def group_of(weight: Weight) -> str:
    """Return the group of a weight, one of GROUPS."""
    matrices = "residual" if weight.is_residual else "hidden"
    named = {EMBEDDING: "embedding", OUTPUT: "output", FINAL_NORM: "final_norm"}
    return named.get(weight.name, matrices if weight.decays else "norm")


def apply_knobs(knobs: Row) -> None:
    """Replace parts of the package by versions that heed the knobs, for the rest of the process."""

    class Updates(updates.Updates):
        """Updates with hyperparameters for each group of weights."""

        def __init__(self, used: model.Model, *rest: Any) -> None:
            make = used.operations.parameters
            self.groups = {group: make(f"hyper of {group}", (), HYPER) for group in GROUPS}
            super().__init__(used, *rest)

        def _hyper_of(self, weight: Weight) -> Tensor:
            return self.groups[group_of(weight)]

        def write_step(self, step: int, learning_rate: float, count: int) -> None:
            super().write_step(step, learning_rate, count)
            options, slot = self._options, step % self.history.shape[0]
            scales = {"embedding": options.table_rate, "output": options.output_rate}
            for group, tensor in self.groups.items():
                peak = knobs.get(f"{group}_lr", options.learning_rate * scales.get(group, 1.0))
                own = self._table_options if group in scales else options
                own = replace(
                    own,
                    weight_decay=float(knobs.get(f"{group}_decay", own.weight_decay)),
                    beta1=knobs.get(f"{group}_beta1", own.beta1),
                    beta2=knobs.get(f"{group}_beta2", own.beta2),
                )
                rate = learning_rate / options.learning_rate * peak
                hyper = updates.hyper_parameters(own, step, rate, 1 / count, slot)
                hyper["inverse_scale"] = 1 / self.scale
                self._model.operations.write(tensor, hyper)

    def initial_values(seed: int, index: int, weight: Weight, kind: str = "normal") -> Any:
        values = INITIAL_VALUES(seed, index, weight, kind)
        asked = knobs.get(f"{group_of(weight)}_init")
        return values if asked is None else values * np.float32(asked / (weight.deviation or 1))

    trainer.Updates = Updates if knobs else updates.Updates
    model.initial_values = initial_values


INITIAL_VALUES = model.initial_values


def options_of(recipe: Row) -> Row:
    """Return the options of a recipe, with the knobs that have become options since."""
    asked, knobs = (
        {"preset": recipe["preset"], **recipe.get("options", {})},
        recipe.get("knobs", {}),
    )
    if recipe.get("defaults"):
        return asked
    if "momentum" in knobs or "momentum_from" in knobs:
        last, steps = knobs.get("momentum", 0.95), max(1, knobs.get("momentum_steps", 300))
        first = knobs.get("momentum_from", last)
        asked |= {"momentum": last, "momentum_start": first, "momentum_steps": steps}
    return BEFORE | asked


def rate(options: TrainOptions, knobs: Row, step: int) -> float:
    """Return the learning rate of a step."""
    if "schedule" not in knobs or step < options.warmup_steps:
        return options.rate(step)
    left = min(1.0, (options.steps - step) / int(options.steps * knobs["down"]))
    height = {
        "linear": left,
        "sqrt": 1 - math.sqrt(1 - left),
        "square": 1 - (1 - left) ** 2,
    }[knobs["schedule"]]
    least = options.min_learning_rate
    return least + (options.learning_rate - least) * height


def train(recipe: Row, folder: Path, open_backend: Callable[[bool], Backend]) -> Row:
    """Train a model by a recipe; return the recipe with bits per byte of the held-out texts."""
    knobs = recipe.get("knobs", {})
    apply_knobs(knobs)
    vocabulary = Vocabulary.load(folder / "v.bin")
    backend = open_backend(recipe["preset"] != "tiny")
    settings = new_settings(options_of(recipe), vocabulary.size, backend=backend)
    config = replace(settings.config, qk_norm=bool(knobs.get("qk_norm")))
    options = replace(settings.options, evaluation_fraction=0.0)
    names = recipe.get("evaluate", ["choice"])
    row, *held_out = (
        open_token_files([str(folder / f"{name}.bin")], vocabulary, "v.bin")
        for name in ("train", *names)
    )
    batches = [Batches(row, options, config.seq_len, None, each) for each in held_out]
    run = trainer.Trainer(choose_arithmetic(backend, None)[0], config, options, 1)
    run.model.initialise(options.seed, options.initialisation)
    begin = time.perf_counter()
    for step in range(options.steps):
        first = step * options.sequences
        some = range(first, first + options.sequences, options.batch_size)
        run.take_step([batches[0].training(k) for k in some], rate(options, knobs, step))
    run.results(1)  # waits for the device
    seconds = round(time.perf_counter() - begin, 2)
    sizes = token_bytes(vocabulary)
    found = {
        name: round(bits_per_byte(run.losses(each.evaluation()), sizes), 4)
        for name, each in zip(names, batches, strict=True)
    }
    facts = {"parameters": config.parameters, "device": backend.description, "seconds": seconds}
    tokens = options.steps * options.sequences * config.seq_len
    return recipe | {"bits": found, "tokens": tokens, "precision": options.precision} | facts


def bits_per_byte(losses: Iterable[tuple[Any, Any]], sizes: Any) -> float:
    """Return the cross-entropy in bits over the number of bytes of all targets."""
    bits, size = 0.0, 0
    for targets, nats in losses:
        counted = targets < len(sizes)
        bits += float(nats[counted].sum(dtype=np.float64)) / math.log(2)
        size += int(sizes[targets[counted]].sum())
    return bits / size


def in_words(recipe: Row, bases: dict[str, Row]) -> str:
    """Return the name of the nearest base, and the settings that differ from the base."""
    own = _settings(recipe)

    def differing(name: str) -> dict[str, Any]:
        base = _settings(bases[name])
        return {key: own.get(key) for key in own | base if own.get(key) != base.get(key)}

    nearest = min(bases, key=lambda name: len(differing(name)))
    changes = [
        f"`{name} {value:.3g}`" if isinstance(value, float) else f"`{name} {value}`"
        for name, value in sorted(differing(nearest).items())
    ]
    return f"{nearest}: {', '.join(changes)}" if changes else f"**{nearest}**"


def _settings(recipe: Row) -> Row:
    both = {**recipe.get("options", {}), **recipe.get("knobs", {})}
    return {name: value for name, value in both.items() if name != "seed" and value is not None}


def table(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of a table: the mean of each recipe's seeds, with half their spread."""
    rows = [row for row in rows if "bits" in row]
    bases: dict[str, dict[str, Row]] = {}
    for row in rows:
        if "base" in row:
            bases.setdefault(row["preset"], {}).setdefault(row["base"], row)
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        words = in_words(row, bases[row["preset"]])
        found.setdefault((row["preset"], words), []).append(row)
    yield "| preset | recipe | runs | text of choices | other text |"
    yield "| --- | --- | --- | --- | --- |"
    for preset, words in sorted(found, key=lambda key: (key[0], _mean(found[key], "choice"))):
        same = found[preset, words]
        cells = [_mean_and_spread(same, text) for text in ("choice", "final")]
        yield f"| `{preset}` | {words} | {len(same)} | {cells[0]} | {cells[1]} |"


def _mean(rows: list[Row], text: str) -> float:
    return sum(row["bits"][text] for row in rows) / len(rows)


def _mean_and_spread(rows: list[Row], text: str) -> str:
    some = [row for row in rows if text in row["bits"]]
    if not some:
        return "-"
    bits = [row["bits"][text] for row in some]
    spread = f" ± {(max(bits) - min(bits)) / 2:.3f}" if len(bits) > 1 else ""
    return f"{_mean(some, text):.3f}{spread}"


def main() -> None:
    """Cut texts, train by recipes, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("cut", "run", "table"))
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args()
    if asked.action == "cut":
        cut(*asked.paths)
    elif asked.action == "table":
        print(*table(json.loads(line) for line in asked.paths[0].open()), sep="\n")
    else:
        open_backend = cache(lambda units: select_backend(asked.device, matrices=units))
        for line in sys.stdin:
            print(json.dumps(train(json.loads(line), asked.paths[0], open_backend)), flush=True)


if __name__ == "__main__":
    main()
