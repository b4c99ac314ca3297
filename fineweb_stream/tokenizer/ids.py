"""Array types that the stages share: token ids, and the offsets at which documents end."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.unsignedinteger[Any]]
"""Token ids: uint16, or uint32 if the tokenizer has more than 65,536 ids (`Tokenizer.dtype`)."""

Ends = npt.NDArray[np.int64]
