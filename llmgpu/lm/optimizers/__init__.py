"""The optimizers, by name.

To add an optimizer, write a module with a `WeightState` and an `Optimizer`, write the kernels, and
add a line to the table. Options and their help, the computed memory, checkpoints and error messages
follow from the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmgpu.registry import Entry, Registry

if TYPE_CHECKING:
    from llmgpu.lm.optimizers.adamw import Optimizer

_ROOM = "llmgpu.lm.optimizers"
OPTIMIZERS: Registry[Optimizer] = Registry(
    {
        "adamw": Entry(f"{_ROOM}.adamw:ADAMW", "keeps float32 moments"),
        "adamw-8bit": Entry(f"{_ROOM}.adamw:ADAMW_8BIT", "keeps them in a quarter of the memory"),
        "muon": Entry(
            f"{_ROOM}.muon:MUON",
            "orthogonalizes the updates of hidden matrices and uses AdamW for the rest",
        ),
    }
)
