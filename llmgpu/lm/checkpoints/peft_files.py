"""Low-rank adapters in files, as the library peft opens them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgpu.files import atomic_output, output_errors, sync
from llmgpu.lm.checkpoints.safetensors_file import TensorSource, write_tensors
from llmgpu.lm.options import TrainOptions


@dataclass(frozen=True)
class AdapterFiles:
    """Tensors by peft's names, and the content of their adapter_config.json."""

    tensors: Mapping[str, TensorSource]
    config: dict[str, Any]

    def write(self, folder: Path) -> None:
        """Write a new folder; OutputError if that can't be done."""
        with output_errors(str(folder)):
            folder.mkdir()
        write_tensors(folder / "adapter_model.safetensors", self.tensors, {"format": "pt"})
        with atomic_output(folder / "adapter_config.json") as stream:
            stream.write(json.dumps(self.config, indent=2).encode() + b"\n")
        with output_errors(str(folder)):
            for path in folder.iterdir():
                sync(path)


def describe_adapter(options: TrainOptions, base: str) -> dict[str, Any]:
    """Return the content of peft's adapter_config.json; base: where the model is."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": options.lora_rank,
        "lora_alpha": options.lora_alpha,
        "target_modules": list(options.targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "inference_mode": True,
    }
