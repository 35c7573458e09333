"""The settings of a run, and the memory that the run needs.

The settings come from the user's options, or from the checkpoint that the run resumes. The memory
is computed before the run allocates any: the programs of the run are recorded over tensors that
have shapes but no memory. The sizes of all tensors are added up, scratch memory included. A sum
that is too large ends the recording at once, so recording is quick for any sizes. A process also
needs memory for tokenizing the text, for temporary arrays of operations, and for copies of weights
on their way to a device or a file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from heapq import nlargest
from typing import Any

import numpy as np

from llmgpu.backend import NUMPY, Backend
from llmgpu.errors import CheckpointError, DeviceError, InputError
from llmgpu.lm.checkpoints.checkpoint import Checkpoint
from llmgpu.lm.config import ModelConfig, preset
from llmgpu.lm.model import drawn_ahead
from llmgpu.lm.ops.attention import BLOCK_SCORES
from llmgpu.lm.ops.matrix_units import trains_on_units
from llmgpu.lm.ops.operations import GpuOperations, Operations
from llmgpu.lm.ops.tensor import AnyArray, Tensor
from llmgpu.lm.optimizers.adamw import PIECE
from llmgpu.lm.options import (
    F16_VERSION,
    LORA_TARGETS,
    STORED_FIRST,
    TrainOptions,
)
from llmgpu.lm.trainer import Trainer
from llmgpu.lm.workers import exchange_memory, local_memory
from llmgpu.machine import free_memory, has_limited_address_space
from llmgpu.option_fields import flag_of, own_options

# Options that may change when a run is resumed.
MAY_CHANGE = {name for name, one in own_options(TrainOptions).items() if one.may_change}
# Learning rates for a trained model. They are low, because its weights are already good. The rate
# of adapters is higher, because adapters start from 0.
FINE_TUNING_RATE, ADAPTER_RATE = 2e-5, 2e-4
FINE_TUNING_LENGTH = 1024  # most tokens of a sequence with --init, unless --seq-len is given
# The default learning rate times the width. With AdamW, for widths of 64 and 128, the best rate was
# about 1 / width (docs/recipes.md). Half that rate costs 1 % and is safer.
RATE_TIMES_WIDTH = 0.5
LARGEST_RATE = 1e-2
# Operations of a batch from which half precision is the default on matrix units. On an H200, half
# precision was 1.4 times as slow as float32 for a batch of 1e10 operations, and twice as fast for a
# batch of 7e11.
HALF_FROM = 1e11
DECAY_SHARE = 5  # the decay of the schedule "wsd" is 1 / DECAY_SHARE of all steps
SMALLER = "use a smaller --batch-size (and --grad-accum), --seq-len or model"
LAYER_BYTES = 64 << 10  # for the Python objects of a layer: tensors and recorded operations
NUMPY_BYTES = 64 << 20  # for reading and checking tokens, and for libraries
# A checkpoint has four float32 per parameter: weight, two moments, momentum of --sync-every.
SAVED_BYTES = 16
COPIES_SHARE = 0.5  # share of the free memory that copies for a checkpoint may take
GPU_BYTES = 256 << 20  # for the driver, compiled kernels and staging memory
# Upper bounds of the number of temporary arrays at a time: copies of a weight, of the attention
# scores of a block, of the widest activation, and of the piece that an optimizer updates.
_WEIGHT_COPIES, _SCORE_COPIES, _ACTIVATION_COPIES, _OPTIMIZER_COPIES = 2, 5, 6, 8


@dataclass(frozen=True)
class RunSettings:
    """The sizes of the model, and the options of its training."""

    config: ModelConfig
    options: TrainOptions


_OPTION_NAMES = frozenset(field.name for field in fields(TrainOptions))


def new_settings(
    asked: Mapping[str, Any],
    vocab_size: int,
    model: ModelConfig | None = None,
    backend: Backend = NUMPY,
) -> RunSettings:
    """Return the settings of a new run.

    asked: "preset", and values that replace the preset's sizes and the options' defaults, by the
    names of `ModelConfig` and `TrainOptions`; None replaces nothing. model: sizes of the model
    whose weights the run begins with, instead of a preset; only `seq_len` may be replaced. backend:
    trains the model. On matrix units, the default precision is f16 unless the model is small.

    Raises:
        InputError: sizes or options are not valid.
    """
    sizes = {name: value for name, value in asked.items() if name not in _OPTION_NAMES}
    name = sizes.pop("preset")
    if model is None:
        config = preset(name, vocab_size, **sizes)
    else:
        name, config = "", _shortened(model, sizes)
    options = _with_defaults(asked, name, config, is_new=model is None)
    if options.get("lora_rank") and model is None:
        raise InputError("--lora-rank needs a trained model: use --init FOLDER")
    settings = RunSettings(config, TrainOptions(**options))
    has_units = trains_on_units(backend.device, config.head_dim)
    if asked.get("precision") is None and has_units and gains_by_halves(settings):
        settings = replace(settings, options=replace(settings.options, precision="f16"))
    _check_together(settings.options)
    if settings.options.sparse_embedding and config.tied:
        raise InputError(
            "--sparse-embedding updates only the rows of tokens in the batch, but a tied table is "
            "also the output layer, where every row has a gradient; use --untied"
        )
    return settings


def gains_by_halves(settings: RunSettings) -> bool:
    """Whether a batch is so large that half precision on matrix units is faster than float32."""
    config, options = settings.config, settings.options
    return config.training_operations(options.batch_size * config.seq_len) >= HALF_FROM


def _shortened(model: ModelConfig, sizes: Mapping[str, Any]) -> ModelConfig:
    """Return the config of a trained model with the `seq_len` of `sizes`, or the default length.

    Raises InputError if `sizes` has other sizes.
    """
    for name, value in sizes.items():
        if name != "seq_len" and value is not None:
            flag = flag_of(name, ModelConfig)
            raise InputError(
                f"{flag} is {value}, but --init sets the size of the model; drop {flag}"
            )
    longest = model.max_positions or model.seq_len
    length = sizes.get("seq_len") or min(longest, FINE_TUNING_LENGTH)
    return replace(model, seq_len=length, max_positions=None if length == longest else longest)


def _with_defaults(
    asked: Mapping[str, Any], preset: str, config: ModelConfig, *, is_new: bool
) -> dict[str, Any]:
    """Return the options in `asked`, and defaults that follow from other options.

    preset: "" for none. is_new: whether the run begins with new weights.
    """
    declared = own_options(TrainOptions)
    made = {
        name: one.by_preset[preset] for name, one in declared.items() if preset in one.by_preset
    }
    made |= {
        name: value for name, value in asked.items() if name in _OPTION_NAMES and value is not None
    }
    steps = made.setdefault("steps", TrainOptions.steps)
    rank = made.get("lora_rank", 0)
    if is_new:
        # For new weights, Muon is better at equal tokens and equal time (docs/recipes.md).
        takes_muon = made.setdefault("optimizer", "muon") == "muon"
        made = (_muon_defaults(config) if takes_muon else {}) | made
        # An embedding table apart from the output layer gets a higher rate than the output layer.
        if takes_muon and not config.tied:
            made.setdefault("output_rate", made["table_rate"] / 4)
        made.setdefault("learning_rate", min(LARGEST_RATE, RATE_TIMES_WIDTH / config.dim))
    else:
        made.setdefault("learning_rate", ADAPTER_RATE if rank else FINE_TUNING_RATE)
    made.setdefault("output_rate", made.get("table_rate", TrainOptions.table_rate))
    made.setdefault("min_learning_rate", 0.0)
    made.setdefault("warmup_steps", min(TrainOptions.warmup_steps, steps // 10))
    is_wsd = made.get("schedule") == "wsd"
    made.setdefault("decay_steps", -(-steps // DECAY_SHARE) if is_wsd else 0)
    if not rank:
        return made | {"lora_alpha": 0.0, "lora_targets": ""}
    return {"lora_alpha": 2.0 * rank, "lora_targets": ",".join(LORA_TARGETS), **made}


def _muon_defaults(config: ModelConfig) -> dict[str, Any]:
    """Return the options whose defaults for a new model differ between Muon and AdamW."""
    # The best rate falls more slowly with the width than AdamW's, because all singular values of a
    # step are equal. Tables are updated by AdamW, and their rate falls with the width itself.
    rate = 0.06 / math.sqrt(config.dim)
    table_rate = 5.0 / config.dim / rate
    return {
        "learning_rate": min(LARGEST_RATE, rate),
        "table_rate": table_rate if config.tied else 2 * table_rate,
        "schedule": "linear",
        # Most rows of a table have no gradient in most steps, so the mean of squares must cover
        # many steps. Rows of frequent ids follow their gradients faster with a shorter mean.
        "beta2": 0.99,
        "table_decay": 0.0,
        "table_beta1": 0.8,
        # A short momentum follows the first gradients, which change fast.
        "momentum_start": 0.85,
        "momentum_steps": 300,
    }


def _check_together(options: TrainOptions) -> None:
    """Raise InputError for options that are valid alone, but not together."""
    taken = options.warmup_steps + options.decay_steps
    if taken > options.steps:
        decay = f" and a decay of {options.decay_steps}" if options.decay_steps else ""
        raise InputError(
            f"a warm-up of {options.warmup_steps}{decay} steps can't fit in --steps "
            f"{options.steps}: use a smaller --warmup-steps or more --steps"
        )
    if not options.beta2:
        raise InputError(
            "--beta2 is 0, which makes every step as large as the learning rate for any gradient; "
            "use more, such as 0.95"
        )


def step_to_resume_from(checkpoint: Checkpoint, steps: int | None) -> int:
    """Return the step of the checkpoint from which a run is continued.

    checkpoint: the newest checkpoint. steps: the new number of steps; None: unchanged. With the
    schedule "wsd" a run of more steps begins its decay later. So such a run is continued from the
    checkpoint before the old decay.
    """
    options, step = _stored_options(checkpoint), checkpoint.state.step
    start = options.decay_start
    if start is not None and steps is not None and steps > options.steps:
        return min(step, start)
    return step


def explain_schedule(checkpoint: Checkpoint, options: TrainOptions) -> str | None:
    """Return a note on how a change of --steps affects the learning rate; None if it does not."""
    before, step = _stored_options(checkpoint), checkpoint.state.step
    if step in (0, options.steps) or before.rate(step - 1) == options.rate(step - 1):
        return None
    return (
        f"{options.steps:,} steps instead of {before.steps:,} change the learning rate: that of "
        f"step {step + 1:,} is {options.rate(step):.2e}, after {before.rate(step - 1):.2e}. The "
        f"weights are not those of a run planned for {options.steps:,} steps; runs with --schedule "
        "wsd can be extended without that"
    )


def resumed_settings(checkpoint: Checkpoint, asked: Mapping[str, Any]) -> RunSettings:
    """Return the settings with which a checkpoint's run is resumed.

    asked: the user's options. Only the options in `MAY_CHANGE` may differ from the stored options,
    so that the run stays the same.

    Raises:
        InputError: another option differs. CheckpointError: a stored option is missing or unknown.
    """
    options = _stored_options(checkpoint)
    wanted, config = dict(asked), checkpoint.config
    name = wanted.pop("preset", None)
    if name is not None:  # the preset's sizes must equal the run's sizes, too
        sizes = {key: value for key, value in asked.items() if hasattr(config, key)}
        wanted = asdict(preset(name, config.vocab_size, **sizes)) | wanted
    before = asdict(config) | asdict(options)
    for key, value in wanted.items():
        if key not in MAY_CHANGE and value != before[key]:
            flag = flag_of(key, TrainOptions, ModelConfig)
            what = flag if key in asked else f"{flag} of --preset {name}"
            run = checkpoint.folder.parent
            weights = "" if hasattr(config, key) else f" from its weights (--init {run})"
            raise InputError(
                f"{what} is {value}, but the run in {run} has {before[key]}: drop it to resume "
                f"that run, or start a new one{weights}"
            )
    options = replace(options, **{key: value for key, value in asked.items() if key in MAY_CHANGE})
    if options.steps < checkpoint.state.step:
        raise InputError(
            f"--steps is {options.steps}, but {checkpoint.folder} has already done "
            f"{checkpoint.state.step}"
        )
    return RunSettings(checkpoint.config, options)


def _stored_options(checkpoint: Checkpoint) -> TrainOptions:
    stored = checkpoint.state.options
    if missing := sorted(set(STORED_FIRST) - stored.keys()):
        raise CheckpointError(
            f"{checkpoint.folder}: its options lack {', '.join(missing)}, as in unreleased "
            "versions of llmgpu: resume it with the one that wrote it, or start a new run"
        )
    try:
        options = TrainOptions(**stored)
    except (TypeError, InputError) as error:
        raise CheckpointError(f"{checkpoint.folder}: its options don't fit: {error}") from error
    if options.is_mixed and options.f16_version != F16_VERSION:
        raise CheckpointError(
            f"{checkpoint.folder} was trained in f16 by another version of llmgpu, which rounds "
            f"differently (arithmetic {options.f16_version}, not {F16_VERSION}): resume it with "
            "that version, or start a new run"
        )
    return options


class _Measuring(Operations):
    """Operations on tensors without memory: `nbytes` grows, but programs can't run.

    DeviceError for a tensor that is too large for the device, or for the free memory.
    """

    backend: Backend
    free: int | None  # free bytes on the host; None: unknown

    def _allocate(self, tensor: Tensor) -> Tensor:
        if self.backend.is_software:
            require_free(self.nbytes + tensor.nbytes, self.free, "at least ")
        if tensor.nbytes > self.max_tensor_bytes:
            raise DeviceError(
                f"the model does not fit: {tensor.name} takes {tensor.nbytes:,} bytes, but "
                f"{self.backend.description} binds at most {self.max_tensor_bytes:,}; {SMALLER}, "
                "or --device cpu"
            )
        # All elements share the memory of one number.
        return replace(tensor, data=np.broadcast_to(np.zeros((), tensor.dtype), tensor.shape))

    def write(self, tensor: Tensor, array: AnyArray) -> None:
        """Write nothing."""

    def write_computed(self, *call: object) -> None:
        """Compute nothing."""


class _MeasuringGpu(_Measuring, GpuOperations):
    """Records programs without kernels, so that no kernel is compiled or bound."""

    def dispatch(self, *call: object, **bindings: object) -> None:
        pass


def training_memory(settings: RunSettings, backend: Backend, slots: int) -> int:
    """Return the bytes of all tensors of a training run on a backend; `slots`: see `Trainer`.

    Raises:
        DeviceError: a tensor is larger than the device can bind; the CPU computes, and all tensors
            together are larger than the free memory; or the Python objects of the layers are.
    """
    device, free = backend.device, free_memory()
    # Recording 100,000 layers takes 30 s, so refuse a model that is far too large before recording.
    require_layers(settings.config, is_software=backend.is_software)
    operations = _Measuring() if device is None else _MeasuringGpu(device)
    operations.backend, operations.free = backend, free
    Trainer(operations, settings.config, settings.options, slots)
    return operations.nbytes


def require_layers(config: ModelConfig, *, is_software: bool = False) -> None:
    """Raise DeviceError if the Python objects of layers exceed the free memory.

    is_software: the host's memory also holds the weights, so count these, too.
    """
    held = 4 * config.parameters if is_software else 0
    require_free(LAYER_BYTES * config.layers + held, free_memory(), "at least ")


def host_memory(settings: RunSettings, backend: Backend, tensor_bytes: int, workers: int) -> int:
    """Return an upper bound of the host memory of the process in bytes, CPU tensors included.

    tensor_bytes: result of `training_memory`. workers: number of processes that train the model.
    """
    config, options = settings.config, settings.options
    rows = options.batch_size * config.seq_len
    largest = max(weight.size for weight in config.weights())
    # Several weights are drawn ahead, but only one at a time is loaded or uploaded.
    sizes = (weight.size for weight in config.weights())
    drawn = sum(nlargest(drawn_ahead(config, backend), sizes))
    temporary = 4 * max(_WEIGHT_COPIES * largest, largest + drawn)
    if backend.device is None:
        row_scores = options.batch_size * config.heads * config.seq_len
        scores = min(max(BLOCK_SCORES, row_scores), row_scores * config.seq_len)
        activations = rows * max(config.dim, config.ffn_dim)
        temporary = max(
            temporary,
            _SCORE_COPIES * 4 * scores,
            _ACTIVATION_COPIES * 4 * activations,
            _OPTIMIZER_COPIES * 4 * min(PIECE, largest),
        )
        needed = NUMPY_BYTES + temporary + tensor_bytes
    else:
        needed = GPU_BYTES + temporary + (tensor_bytes if backend.is_software else 0)
    # Add the copies of a checkpoint's tensors, if there is room. On a software adapter, the
    # tensors and their copies on the device are also in the host's memory.
    copies = SAVED_BYTES * config.parameters
    if backend.device is not None and backend.is_software:
        copies *= 2
    free = free_memory()
    if has_room_for_copies(copies, free and free - needed):
        needed += copies
    # Add the memory in which workers exchange gradients or, at the end of a round, weights.
    if options.sync_every:
        needed += local_memory(config.parameters)
    elif workers > 1:
        needed += exchange_memory(config.parameters)
    return needed


def has_room_for_copies(nbytes: int, free: int | None) -> bool:
    """Whether `nbytes` bytes of copies fit into `COPIES_SHARE` of `free` bytes (None: unknown).

    False with a limited address space, because the heap of a second thread takes too much of it.
    """
    fits = free is None or nbytes <= COPIES_SHARE * free
    return fits and not has_limited_address_space()


def require_free(needed: int, free: int | None, qualifier: str = "") -> None:
    """Raise DeviceError if a run needs more than `free` bytes; None: free memory is unknown."""
    if free is not None and needed > free:
        raise DeviceError(
            f"the run needs {qualifier}{needed:,} bytes of memory, but {free:,} are free; {SMALLER}"
        )
