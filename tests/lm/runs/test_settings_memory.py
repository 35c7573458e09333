"""The memory sum: found without taking any memory, and equal to what a run then takes."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from llmgpu.backend import NUMPY, Backend
from llmgpu.errors import DeviceError
from llmgpu.gpu.adapters import WEBGPU_DEFAULT_LIMITS
from llmgpu.gpu.device import Device
from llmgpu.lm.config import PRESETS, ModelConfig
from llmgpu.lm.ops import attention, linear
from llmgpu.lm.ops.matrix_units import ATTENTION_TILES, MATRIX_TILES, AttentionUnits, MatrixUnits
from llmgpu.lm.ops.operations import open_operations
from llmgpu.lm.ops.optimizer import NORM_PARTIALS
from llmgpu.lm.ops.tensor import Tensor
from llmgpu.lm.options import TrainOptions
from llmgpu.lm.runs import settings as settings_module
from llmgpu.lm.runs.settings import (
    NUMPY_BYTES,
    RunSettings,
    host_memory,
    new_settings,
    training_memory,
)
from llmgpu.lm.trainer import Trainer
from tests.conftest import ROOT

CONFIG = ModelConfig(vocab_size=90, dim=32, layers=2, heads=4, kv_heads=2, ffn_dim=48, seq_len=40)
KINDS = [
    RunSettings(CONFIG, TrainOptions(batch_size=2)),
    RunSettings(
        replace(CONFIG, tied=False, activation="gelu"),
        TrainOptions(batch_size=3, grad_accum=2, optimizer="adamw-8bit"),
    ),
    RunSettings(replace(CONFIG, tied=False), TrainOptions(batch_size=2, sparse_embedding=True)),
    RunSettings(
        CONFIG,
        TrainOptions(batch_size=2, lora_rank=3, lora_alpha=6.0, lora_targets="k_proj,up_proj"),
    ),
]
NAMES = ["plain", "8 bits", "rows", "adapters"]


@pytest.mark.parametrize("settings", KINDS, ids=NAMES)
def test_the_sum_for_a_device_is_what_its_buffers_take(
    any_device: Device, settings: RunSettings, monkeypatch: Any
) -> None:
    sizes: dict[str, list[int]] = {}
    handles: list[str] = []
    kind = type(any_device)  # what its guards take is not of the run
    create = kind.create_buffer

    def create_buffer(device: Device, label: str, nbytes: int) -> Any:
        sizes.setdefault(label, []).append(nbytes)
        return create(device, label, nbytes)

    create_handle = Device.create_handle

    def count_handles(device: Device, label: str, *rest: Any) -> Any:
        handles.append(label)
        return create_handle(device, label, *rest)

    monkeypatch.setattr(kind, "create_buffer", create_buffer)
    monkeypatch.setattr(Device, "create_handle", count_handles)
    needed = training_memory(settings, Backend(any_device, "a device"), slots=5)
    assert not handles  # the sum itself takes no memory
    Trainer(open_operations(any_device), settings.config, settings.options, slots=5)
    scratch = [label for label in sizes if label.endswith("scratch")]
    kinds = ["attention delta", "rms_norm_backward"]
    if not settings.options.lora_rank:  # tables have no gradient then
        kinds.append("embedding pieces")
    assert {f"{kind} scratch" for kind in kinds} <= set(scratch)
    del sizes["parameters"]  # the sizes that kernels take are not tensors
    assert needed == sum(nbytes for of_label in sizes.values() for nbytes in of_label)


def test_a_model_of_too_many_layers_is_refused_before_it_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Trainer, "__init__", pytest.fail)
    for layers in (50_000, 10**9):
        config = replace(CONFIG, layers=layers, dim=1024, ffn_dim=4096)
        settings = RunSettings(config, TrainOptions(batch_size=1))
        monkeypatch.setattr("llmgpu.lm.runs.settings.free_memory", lambda: 16 << 30)
        with pytest.raises(DeviceError, match="the run needs at least"):
            training_memory(settings, NUMPY, slots=1)
        assert config.training_operations(1) > layers


def test_sparse_updates_take_no_gradient_of_the_whole_table() -> None:
    config = replace(CONFIG, tied=False, vocab_size=6400)
    dense = TrainOptions(batch_size=2, grad_accum=3)
    sizes = [
        training_memory(RunSettings(config, options), NUMPY, slots=1)
        for options in (dense, replace(dense, sparse_embedding=True))
    ]
    rows = 2 * 3 * config.seq_len
    assert sizes[0] - sizes[1] == 4 * (6400 - rows) * config.dim - 4 * rows


@pytest.mark.parametrize("tied", [True, False])
def test_what_adapters_leave_as_it_is_has_neither_gradient_nor_moments(tied: bool) -> None:
    """A table takes its own memory, and its logits; a layer its weights, twice with an adapter."""
    options = TrainOptions(batch_size=1, lora_rank=1, lora_alpha=1.0, lora_targets="up_proj")

    def taken(**sizes: int) -> int:
        config = replace(CONFIG, tied=tied, **sizes)
        return training_memory(RunSettings(config, options), NUMPY, slots=1)

    rows = 6400 - CONFIG.padded_vocab_size
    tables = (1 if tied else 2) * CONFIG.dim
    assert taken(vocab_size=6400) - taken() == 4 * rows * (tables + CONFIG.seq_len)
    # Activations are twice those of half as many tokens.
    layer = 2 * (taken(layers=3) - taken()) - (
        taken(layers=3, seq_len=2 * CONFIG.seq_len) - taken(seq_len=2 * CONFIG.seq_len)
    )
    weights = replace(CONFIG, layers=3).parameters - CONFIG.parameters
    adapted, factors = CONFIG.ffn_dim * CONFIG.dim, CONFIG.ffn_dim + CONFIG.dim
    # A factor has a gradient, two moments, and partial norms of its gradient.
    assert layer == 4 * (weights + adapted + 4 * factors + 2 * NORM_PARTIALS)


def test_partial_sums_of_products_count(device: Device) -> None:
    # One sequence of many tokens: gradients of small weights are split along the tokens.
    config = replace(CONFIG, seq_len=9000, layers=1)
    settings = RunSettings(config, TrainOptions(batch_size=1))
    on_device = training_memory(settings, Backend(device, "a device"), slots=1)
    on_host = training_memory(settings, NUMPY, slots=1)
    assert on_device > on_host


@pytest.mark.parametrize(("heads", "kv_heads", "ffn_dim"), [(4, 1, 64), (4, 4, 64), (4, 2, 200)])
def test_gradients_of_heads_with_norms_are_not_one_tensor(
    device: Device, monkeypatch: pytest.MonkeyPatch, heads: int, kv_heads: int, ffn_dim: int
) -> None:
    unit, width = (16, 16, 16), 32

    def attention_units(_: Device, head_dim: int, *, gradients: bool) -> AttentionUnits:
        return AttentionUnits(*ATTENTION_TILES[0], unit, 32, head_dim)

    monkeypatch.setattr(attention, "attention_units", attention_units)
    monkeypatch.setattr(linear, "matrix_units", lambda _: MatrixUnits(unit, 32, MATRIX_TILES))
    config = ModelConfig(
        vocab_size=90,
        dim=64,
        layers=1,
        heads=heads,
        kv_heads=kv_heads,
        ffn_dim=ffn_dim,
        seq_len=16,
        head_width=width,
        qk_norm=True,
    )
    options = TrainOptions(batch_size=64, precision="f16")
    operations = settings_module._MeasuringGpu(device)
    operations.backend, operations.free = Backend(device, "a device"), None
    operations.has_half_precision = True
    sizes: list[int] = []
    allocate = operations._allocate

    def note_size(tensor: Tensor, **how: bool) -> Tensor:
        sizes.append(tensor.nbytes)
        return allocate(tensor, **how)

    monkeypatch.setattr(operations, "_allocate", note_size)
    Trainer(operations, config, options, slots=1)
    rows = options.batch_size * config.seq_len
    # One tensor of the gradients of queries, keys and values would be the largest.
    feed_forward, apart = 2 * 2 * ffn_dim * rows, max(heads, 2 * kv_heads) * width * 4 * rows
    assert (heads + 2 * kv_heads) * width * 4 * rows > max(feed_forward, apart)
    assert max(sizes) == max(feed_forward, apart)


def test_numpy_s_sum_is_that_of_its_arrays() -> None:
    for settings in KINDS:
        operations = open_operations(None)
        Trainer(operations, settings.config, settings.options, slots=5)
        assert training_memory(settings, NUMPY, slots=5) == operations.nbytes


def test_a_tensor_that_the_device_can_t_bind_is_named(portable_device: Device) -> None:
    limit = WEBGPU_DEFAULT_LIMITS["max-storage-buffer-binding-size"]
    config = replace(CONFIG, vocab_size=limit // (4 * CONFIG.dim) + 1)
    backend = Backend(portable_device, "a small device")
    with pytest.raises(DeviceError, match=r"embed_tokens.* takes .* a small device binds at most"):
        training_memory(RunSettings(config, TrainOptions(batch_size=1)), backend, slots=1)


HUGE = (1 << 31) - 1
SIZES: list[dict[str, Any]] = [{"seq_len": HUGE}, {"dim": HUGE - 15}, {"ffn_dim": HUGE}]
SIZES += [{"vocab_size": HUGE}, {"layers": HUGE}, {"batch_size": HUGE}, {"grad_accum": HUGE}]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: next(iter(size)))
def test_a_run_that_can_t_fit_is_refused_before_anything_is_made(
    device: Device, size: dict[str, Any]
) -> None:
    size = size.copy()
    options = {name: size.pop(name) for name in ("batch_size", "grad_accum") if name in size}
    settings = RunSettings(replace(CONFIG, **size), TrainOptions(**options))
    tracemalloc.start()
    try:
        for backend in (NUMPY, Backend(device, "a device")):
            with pytest.raises(DeviceError, match=r"(least|takes) [\d,]+ bytes.* use a small"):
                training_memory(settings, backend, slots=1)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("settings", KINDS, ids=NAMES)
def test_what_a_run_holds_is_within_its_estimate(settings: RunSettings) -> None:
    config = replace(settings.config, seq_len=160, ffn_dim=512)
    settings = replace(settings, config=config)
    needed = training_memory(settings, NUMPY, slots=1)

    def take_step() -> None:
        trainer = Trainer(open_operations(None), config, settings.options, slots=1)
        trainer.model.initialise(1)
        rows = np.zeros((settings.options.batch_size, config.seq_len), np.uint32)
        trainer.take_step([(rows, rows)] * settings.options.grad_accum, 0.1)

    take_step()  # which imports, and compiles, what it uses
    tracemalloc.start()
    try:
        take_step()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    estimate = host_memory(settings, NUMPY, needed, 1) - NUMPY_BYTES
    assert needed < peak <= estimate <= 2.5 * peak


def test_the_sizes_of_presets_are_those_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_module, "free_memory", lambda: 1 << 50)
    page = (ROOT / "docs" / "language-models.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.count("|") == 10]
    assert [row[0].split("`")[1] for row in rows[2:]] == [*PRESETS]
    for name, *shown in rows[2:]:
        asked = {"preset": name.split("`")[1], "steps": None, "warmup_steps": None}
        settings = new_settings(asked, 50_257)
        config = settings.config
        sizes = (config.dim, config.layers, config.heads, config.seq_len)
        assert shown[:4] == [*map(str, sizes)]
        assert int(shown[4]) == round(config.parameters / 1e6)
        needed = training_memory(settings, NUMPY, slots=1)
        assert float(shown[5]) == pytest.approx(needed / 1e9, rel=0.02, abs=0.05)
