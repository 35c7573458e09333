"""Every character of Unicode."""

import numpy as np

# U+0000 to U+10FFFF but surrogates, in order. By way of bytes it is made in no time.
CHARACTERS = np.r_[0:0xD800, 0xE000:0x110000].astype("<u4").tobytes().decode("utf-32-le")
