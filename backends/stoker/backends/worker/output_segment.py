"""`OutputSegment`: the segment that will carry the result of a batch, as memory for its outputs."""

from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np

from stoker.backends.api.layout import Array
from stoker.backends.api.output_memory import Layout
from stoker.backends.worker.channel import Channel
from stoker.backends.worker.segments import ALIGNMENT, Octets, Segment, aligned

#: Outputs of less are copied into the message: to bind memory for a run of ONNX Runtime takes as much CPU as to copy 0.6 MB.
LEAST_BYTES: Final = 1 << 20


class OutputSegment:
    """An `OutputMemory`: arrays in a segment of `channel`, which the first of a batch reserves.

    Attributes:
        used_bytes: Bytes of the segment, from its start, that arrays lie in.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._segment: Segment | None = None
        self._octets: Octets | None = None
        self._address = 0
        self.used_bytes = 0

    def arrays(self, layouts: Sequence[Layout]) -> list[Array] | None:
        offsets: list[int] = []
        end = start = aligned(self.used_bytes)
        for shape, dtype in layouts:
            offset = aligned(end)
            offsets.append(offset)
            end = offset + prod(shape) * dtype.itemsize
        if end - start < LEAST_BYTES:
            return None
        octets = self._octets
        if octets is None:
            octets = self._reserve(end)
        if octets is None or end > octets.size:
            return None
        self.used_bytes = end
        return [np.ndarray(shape, dtype, octets, offset) for (shape, dtype), offset in zip(layouts, offsets, strict=True)]

    def offset_of(self, array: Array) -> int:
        """The byte of the segment at which `array` stands as a message has it; -1: it must be copied."""
        if self._octets is None or not array.flags.c_contiguous:
            return -1
        offset = array.ctypes.data - self._address
        return offset if offset >= 0 and offset + array.nbytes <= self.used_bytes and not offset % ALIGNMENT else -1

    def take(self) -> Segment | None:
        """The segment, for `Channel.send` with the result; None: nothing lies in it. The next arrays are the next batch's."""
        segment, self._segment, self._octets = self._segment, None, None
        self.used_bytes = 0
        return segment

    def _reserve(self, size_bytes: int) -> Octets | None:
        try:
            self._segment = self._channel.reserve(size_bytes)
        except OSError:
            return None  # the message has no memory either, and says so
        if self._segment is None:
            return None
        octets: Octets = np.frombuffer(self._segment.memory, np.uint8)
        self._octets, self._address = octets, octets.ctypes.data
        return octets
