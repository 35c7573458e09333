"""Models in folders, loaded to be run; what reads folders alone imports no operations."""

from __future__ import annotations

from llmgpu.backend import Backend
from llmgpu.lm.checkpoints.pretrained import SavedModel
from llmgpu.lm.model import Model
from llmgpu.lm.ops.operations import open_operations
from llmgpu.lm.options import Precision


def load_model(
    saved: SavedModel, backend: Backend, tokens: int, precision: Precision = "f32"
) -> Model:
    """Return a model with its weights, for sequences of up to `tokens` tokens.

    precision: of the matrices, and with "f16", where there are matrix units, of activations.

    Raises CheckpointError for weights that are not finite, DeviceError as `Model`.
    """
    is_half = precision == "f16"
    has_units = backend.device is not None and bool(backend.device.matrix_shapes)
    model = Model(
        open_operations(backend.device, fixed_products=True),
        saved.config.generating(tokens),
        half=is_half,
        mixed=is_half and has_units,
    )
    model.load(saved.weights.__getitem__)
    return model
