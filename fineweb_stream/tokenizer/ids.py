"""What passes between the stages as ids, and what the files hold."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .gpt2 import GPT2

Ids = npt.NDArray[np.uint16]
Ends = npt.NDArray[np.int64]

TOKEN_DTYPE = GPT2.dtype
"""What `train.bin` and `val.bin` hold: little-endian uint16."""
