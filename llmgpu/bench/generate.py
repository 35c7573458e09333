"""Measuring generation: tokens per second of a sequence alone, and of a batch of them.

The likeliest ids are taken, with random weights, after the ids that a tiny model gives were
compared with NumPy's. All weights have to be read for each token of a sequence alone, and once for
those of a batch: that is the limit that shares are of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from llmgpu.backend import NUMPY
from llmgpu.bench import GENERATE, BenchOptions
from llmgpu.bench.engines import Engine, cpu_engine
from llmgpu.bench.results import Result, Times
from llmgpu.bench.timing import measure_limits, runs_within, timed
from llmgpu.errors import LlmgpuError
from llmgpu.lm.config import ModelConfig, preset
from llmgpu.lm.generating.generator import Generator, Request
from llmgpu.lm.generating.sampling import Sampler
from llmgpu.lm.model import Model
from llmgpu.lm.ops.operations import open_operations
from llmgpu.lm.options import SamplingOptions
from llmgpu.progress import Progress

SEED = 1
PROMPT = range(16)  # ids that each sequence begins with
# With the table as output layer, random weights repeat the last id.
COMPARED = preset("tiny", 512, layers=2, seq_len=64, tied=False)
COMPARED_TOKENS = 24
ENGINE_SECONDS = 10.0  # after which no further run starts


@dataclass(frozen=True)
class GenerateJob:
    """Sequences of a batch that are continued by `tokens` ids each."""

    name: str
    config: ModelConfig
    sequences: int
    tokens: int

    def __str__(self) -> str:
        """Say the sizes."""
        many = "a sequence alone" if self.sequences == 1 else f"batches of {self.sequences}"
        size = f"{self.config.parameters / 1e6:,.1f} M parameters"
        return f"{self.name}: {size}, {self.tokens} tokens, {many}"


def choose_jobs(engine: Engine, *, quick: bool) -> list[GenerateJob]:
    """Return what an engine does: GPT-2 small on a GPU, a tiny model where a CPU computes."""
    if engine.backend.is_software:
        config, name, many, tokens = preset("tiny", 512), "tiny", 8, 4 if quick else 64
    else:
        config, name, many, tokens = preset("gpt2", 50_257), "gpt2", 64, 64 if quick else 512
    return [GenerateJob(name, config, sequences, tokens) for sequences in (1, many)]


def measure_generate(
    engines: Sequence[Engine], options: BenchOptions, progress: Progress
) -> Iterator[Result]:
    """Yield the results of each engine: of a sequence alone, and of a batch."""
    wanted = _likeliest(Engine(NUMPY, 0.0))
    numpy_rates: dict[str, float] = {}
    for engine in engines:
        compared = Result(GENERATE, engine.host_name)
        try:
            correct = engine.backend is NUMPY or _likeliest(engine) == wanted
            answer = f"{'the' if correct else 'NOT the'} ids of {cpu_engine()}"
            compared = replace(compared, correct=correct, answer=answer)
        except LlmgpuError as error:
            compared = replace(compared, note=str(error))
        for job in choose_jobs(engine, quick=options.quick):
            progress(f"{GENERATE}: {engine.name}, {job}", 0, None)
            result = replace(compared, job=str(job))
            if result.correct:
                result = _measured(result, engine, job, options.runs)
                rate = result.tokens_per_second
                if engine.backend is NUMPY and rate is not None:
                    numpy_rates[str(job)] = rate
                elif rate is not None and str(job) in numpy_rates:
                    result = replace(result, speed_up=rate / numpy_rates[str(job)])
            yield result


def _measured(result: Result, engine: Engine, job: GenerateJob, runs: int) -> Result:
    """Return a result with times, or with why there are none, such as missing memory."""
    try:
        generator = Generator(_model(engine, job.config), sequences=job.sequences)
        _continue(generator, job.sequences, min(8, job.tokens))  # compiles what is not yet
        seconds = [
            timed(lambda: _continue(generator, job.sequences, job.tokens))[0]
            for _ in runs_within(runs, ENGINE_SECONDS)
        ]
    except LlmgpuError as error:
        return replace(result, correct=None, answer="", note=str(error))
    times, tokens = Times.of(seconds), job.sequences * job.tokens
    # The table is read as the output layer, where the two are one.
    read = job.tokens * 4 * job.config.parameters
    floor = read / measure_limits(engine.backend).bytes_per_second
    return replace(
        result,
        clock="host",
        seconds=times,
        tokens=tokens,
        tokens_per_second=tokens / times.median,
        share_of_floor=floor / times.median,
    )


def _model(engine: Engine, config: ModelConfig) -> Model:
    model = Model(open_operations(engine.backend.device, fixed_products=True), config)
    model.initialise(SEED)
    return model


def _continue(generator: Generator, sequences: int, tokens: int) -> list[tuple[int, int | None]]:
    """Continue prompts that differ, each by the likeliest ids."""
    greedy = SamplingOptions(temperature=0)
    prompts = [[(k + 7 * number) % 499 for k in PROMPT] for number in range(sequences)]
    requests = [Request(prompt, tokens, Sampler(greedy)) for prompt in prompts]
    return list(generator.continue_all(requests))


def _likeliest(engine: Engine) -> list[tuple[int, int | None]]:
    """Return an engine's ids for a few sequences, alone and together."""
    model = _model(engine, COMPARED)
    return [
        *_continue(Generator(model), 1, COMPARED_TOKENS),
        *_continue(Generator(model, sequences=3), 3, COMPARED_TOKENS),
    ]
