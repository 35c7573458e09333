"""lm-evaluation-harness on a model here, and on the same folder in transformers: equal numbers."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmgpu.bpe.vocabulary.vocabulary import Vocabulary
from llmgpu.errors import InputError
from llmgpu.lm.checkpoints.checkpoint import save_checkpoint
from tests.bpe.interchange.samples import trained
from tests.lm.samples import random_weights, small_config, state_of

lm_eval = pytest.importorskip("lm_eval")
pytest.importorskip("torch")
pytest.importorskip("accelerate")

TASKS = """\
task: TASK
dataset_path: json
dataset_kwargs:
  data_files: {{test: {folder}/tasks.jsonl}}
  cache_dir: {folder}/cache
test_split: test
output_type: {kind}
{rest}
"""
KINDS = {
    "multiple_choice": """\
doc_to_text: "{{context}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "loglikelihood_rolling": """\
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte}, {metric: word_perplexity}]
""",
    "generate_until": """\
doc_to_text: "{{text}}"
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["a", "\\n"], max_gen_toks: 12}
metric_list: [{metric: exact_match}]
""",
}
# Longer than the model's 64 ids, with ends that are split otherwise alone, and special tokens.
DOCUMENTS: list[dict[str, Any]] = [
    {"context": "The cat sat ", "choices": ["on the mat", " down", "x"], "answer": 0},
    {"context": "", "choices": ["beginning", " end"], "answer": 1},
    {"context": "word " * 90 + "and", "choices": [" then", "y " * 20], "answer": 1},
    {"context": "one<|endoftext|>two", "choices": ["three", "\n"], "answer": 0},
]


@pytest.fixture(scope="module", params=["plain", "with a token before texts"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of random weights, and a task of each kind."""
    folder = tmp_path_factory.mktemp("evaluated")
    vocabulary: Vocabulary = trained()
    if request.param != "plain":
        first = vocabulary.special_tokens["<|endoftext|>"]
        vocabulary = replace(vocabulary, prefix_ids=(first,))
    sizes = {"dim": 64, "ffn_dim": 80, "layers": 2, "heads": 4, "kv_heads": 2, "seq_len": 64}
    config = small_config(vocabulary, **sizes)
    weights = {name: 3 * values for name, values in random_weights(config, 4).items()}
    eos = vocabulary.special_tokens["<|endoftext|>"]
    made = save_checkpoint(
        folder, config, vocabulary, weights.__getitem__, {}, state_of(1), eos_id=eos
    )
    made.rename(folder / "model")
    texts = [f"{each['context']}{each['choices'][0]} ?" for each in DOCUMENTS]
    lines = [json.dumps(each | {"text": t}) for each, t in zip(DOCUMENTS, texts, strict=True)]
    (folder / "tasks.jsonl").write_text("\n".join(lines) + "\n")
    for kind, rest in KINDS.items():
        text = TASKS.format(folder=folder, kind=kind, rest=rest).replace("TASK", f"our_{kind}")
        (folder / f"{kind}.yaml").write_text(text)
    return folder


def evaluate(model: str, folder: Path, **arguments: Any) -> dict[str, Any]:
    from lm_eval.tasks import TaskManager

    found: dict[str, Any] = lm_eval.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=[f"our_{kind}" for kind in KINDS],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        batch_size=2,
        device="cpu",
        bootstrap_iters=0,
    )
    return found


def answers(found: dict[str, Any], kind: str) -> list[Any]:
    """What the model said to each document: texts, or log-likelihoods, some with a truth value."""
    samples = sorted(found["samples"][f"our_{kind}"], key=lambda each: each["doc_id"])
    said = [answer for each in samples for (answer,) in each["resps"]]
    return [x for answer in said for x in (answer if isinstance(answer, tuple) else (answer,))]


def test_the_same_numbers_as_in_transformers(folder: Path) -> None:
    import llmgpu.lm_eval  # noqa: F401

    ours = evaluate("llmgpu", folder, path=str(folder / "model"))
    theirs = evaluate("hf", folder, pretrained=str(folder / "model"), dtype="float32")
    assert answers(ours, "generate_until") == answers(theirs, "generate_until")
    for kind in ("multiple_choice", "loglikelihood_rolling"):
        assert answers(ours, kind) == pytest.approx(answers(theirs, kind), rel=1e-5)
    for task, measured in theirs["results"].items():
        for name, value in measured.items():
            if isinstance(value, float):
                found, tolerance = ours["results"][task][name], 1e-5
                if (
                    "perplexity" in name
                ):  # e to a sum of float32 numbers, of which 24 bits are known
                    found, value, tolerance = math.log(found), math.log(value), 1e-6
                assert found == pytest.approx(value, rel=tolerance), (task, name)


def test_more_new_ids_than_the_model_sees(folder: Path) -> None:
    from llmgpu.lm_eval import EvaluatedModel

    model = EvaluatedModel(str(folder / "model"), device="cpu")
    request = SimpleNamespace(args=("a text", {"max_gen_toks": 64, "until": "x"}))
    with pytest.raises(InputError, match="max_gen_toks is 64, but the model sees 64 ids"):
        model.generate_until([request])


def test_the_command(folder: Path) -> None:
    command = [sys.executable, "-m", "llmgpu.lm_eval", "run", "--model", "llmgpu", "--model_args"]
    arguments = [f"path={folder / 'model'}", "--tasks", "our_multiple_choice"]
    arguments += ["--include_path", str(folder), "--limit", "2"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "our_multiple_choice" in done.stdout and "acc_norm" in done.stdout
