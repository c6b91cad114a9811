"""`OutputMemory`: memory for the outputs of a batch, from which they are sent without a copy."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from stoker.backends.api.layout import Array

Layout = tuple[tuple[int, ...], "np.dtype[np.generic]"]
"""The shape of an array and its dtype, of plain numbers."""


class OutputMemory(Protocol):
    """Memory for outputs. Confined to: the thread that calls `Instance.execute`."""

    def arrays(self, layouts: Sequence[Layout]) -> Sequence[Array] | None:
        """New arrays for outputs of the batch that runs. No later call of this method returns the same memory until the batch was sent.

        Returns:
            One C-contiguous array for each of `layouts`; what it holds is what earlier batches left. None: the outputs are too small to
            gain from it, or there is no memory; the instance allocates its own.
        """
