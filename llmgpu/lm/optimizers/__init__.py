"""The optimizers, by name.

To add one, write a module with its `WeightState`, the kernel that this names, and add a line to the
table: --help, options, the memory sum, checkpoints and error messages follow from it.
"""

from __future__ import annotations

from llmgpu.lm.ops.weight_state import Optimizer
from llmgpu.lm.optimizers.adamw import ADAMW
from llmgpu.lm.optimizers.adamw_8bit import ADAMW_8BIT

OPTIMIZERS: dict[str, Optimizer] = {
    optimizer.name: optimizer
    for optimizer in (
        ADAMW,
        ADAMW_8BIT,
    )
}
