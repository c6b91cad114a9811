"""The connections of the device's end of a stream: a queue, a user's handler, data of the PopEF file, or nothing.

The device asks; nothing here waits. Where there is nothing yet, the device waits at the session's gate and asks again.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stoker.backends.ipu.popef.schema import Anchor

Array = npt.NDArray[Any]
#: Fills, or reads, the memory of one micro-batch of one anchor; called on the device's thread, may block.
Handler = Callable[[Array], None]


class InputStream(Protocol):
    """Where the device reads one anchor from."""

    @property
    def anchor(self) -> Anchor:
        """The anchor it feeds."""

    def fetch(self) -> Array | None:
        """One micro-batch, the same one until `release`; None: nothing yet."""

    def release(self, error: Exception | None) -> None:
        """The device is done with what `fetch` gave."""


class OutputStream(Protocol):
    """Where the device writes one anchor to."""

    @property
    def anchor(self) -> Anchor:
        """The anchor it shows."""

    def slot(self) -> Array | None:
        """Memory for one micro-batch, the same until `release`; None: none yet."""

    def release(self, error: Exception | None) -> None:
        """The device has written what `slot` gave, or never will."""


def zeros_of(anchor: Anchor) -> Array:
    """One micro-batch of zeros."""
    return np.zeros(anchor.tensor_info.shape, anchor.tensor_info.data_type.numpy)


class FixedInput:
    """The same data at every call: tensor data of the file, or zeros where an anchor is bound to nothing."""

    def __init__(self, anchor: Anchor, data: Array) -> None:
        self.anchor = anchor
        self._data = data

    def fetch(self) -> Array | None:
        return self._data

    def release(self, error: Exception | None) -> None:
        """No caller waits for it."""


class DroppedOutput:
    """Memory that is never read."""

    def __init__(self, anchor: Anchor) -> None:
        self.anchor = anchor
        self._memory = zeros_of(anchor)

    def slot(self) -> Array | None:
        return self._memory

    def release(self, error: Exception | None) -> None:
        """No caller waits for it."""


class HandledInput:
    """A user's handler fills the device's memory."""

    def __init__(self, anchor: Anchor, handler: Handler) -> None:
        self.anchor = anchor
        self._handler = handler
        self._memory = zeros_of(anchor)
        self._is_filled = False

    def fetch(self) -> Array | None:
        if not self._is_filled:
            self._handler(self._memory)
            self._is_filled = True
        return self._memory

    def release(self, error: Exception | None) -> None:
        self._is_filled = False


class HandledOutput:
    """A user's handler reads the device's memory."""

    def __init__(self, anchor: Anchor, handler: Handler) -> None:
        self.anchor = anchor
        self._handler = handler
        self._memory = zeros_of(anchor)

    def slot(self) -> Array | None:
        return self._memory

    def release(self, error: Exception | None) -> None:
        if error is None:
            self._handler(self._memory)
