"""What passes between the stages as ids, and where documents end in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.unsignedinteger[Any]]
"""uint16, or uint32 where the tokenizer has more than 65,536 ids (`Tokenizer.dtype`)."""

Ends = npt.NDArray[np.int64]
