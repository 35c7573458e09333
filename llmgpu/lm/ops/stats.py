"""What is where in an optimizer's `stats`, (4,) float32."""

from __future__ import annotations

CLIP_SCALE = 0  # what gradients are multiplied by, 0 in a bad step
NORM = 1  # of all gradients together
BAD = 2  # 1 from the first bad step on
LOSS = 3
