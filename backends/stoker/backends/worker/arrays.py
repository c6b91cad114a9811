"""Arrays as the bytes of a message: their description as JSON, and one copy into the message's memory, unless they stand there already.

A block is one array, or several that lie one below the other. Numbers stand as numpy stores them; BYTES stand as the sizes of all elements
(uint32) followed by the elements.
"""

import json
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from stoker.backends.worker.output_segment import OutputSegment
from stoker.backends.worker.segments import ALIGNMENT, Octets, aligned

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]

#: Names of element types: numpy's, and `O` for BYTES.
BYTES: Final = "O"
_KINDS: Final = frozenset("biufO")


class Blocks:
    """The tensors of a message that is to be sent."""

    __slots__ = ("_memory", "_writes", "entries", "size_bytes")

    def __init__(self, memory: OutputSegment | None = None) -> None:
        """`memory`: arrays in this segment keep their places in the message, and others are put behind them."""
        self._memory = memory
        #: The description: `[element type, shape, offset, bytes]` of each block.
        self.entries: list[list[Any]] = []
        #: Bytes of all blocks.
        self.size_bytes = 0
        self._writes: list[tuple[int, int, Any]] = []

    def add(self, arrays: Sequence[Array]) -> int:
        """Adds one block: `arrays`, whose rows are put one below the other. Returns its number."""
        first = arrays[0]
        shape = list(first.shape)
        if len(arrays) > 1:
            shape[0] = sum([array.shape[0] for array in arrays])
        dtype = first.dtype
        if dtype.kind == BYTES:
            elements = [_octets(element) for array in arrays for element in array.ravel().tolist()]
            sizes = np.array([len(element) for element in elements], np.uint32)
            count = sizes.nbytes + int(sizes.sum(dtype=np.int64))
            self._append(BYTES, shape, count, (sizes, elements))
        else:
            count = sum([array.nbytes for array in arrays]) if len(arrays) > 1 else first.nbytes
            offset = self._memory.offset_of(first) if self._memory is not None and len(arrays) == 1 else -1
            self._append(dtype.str, shape, count, arrays, offset)
        return len(self.entries) - 1

    def write(self, memory: memoryview) -> None:
        """Writes all blocks into `memory`, which has `size_bytes` bytes."""
        octets = np.frombuffer(memory, np.uint8)
        for (name, shape, _, _), (offset, count, content) in zip(self.entries, self._writes, strict=True):
            if not count:
                continue
            target = octets[offset : offset + count]
            if name == BYTES:
                sizes, elements = content
                target[: sizes.nbytes] = sizes.view(np.uint8)
                target[sizes.nbytes :] = np.frombuffer(b"".join(elements), np.uint8)
                continue
            whole = target.view(name).reshape(shape)
            if len(content) == 1:
                if content[0].ctypes.data != target.ctypes.data:
                    whole[...] = content[0]
            else:
                np.concatenate(content, out=whole)

    def _append(self, name: str, shape: "list[int]", count: int, content: Any, offset: int = -1) -> None:
        if offset < 0:
            used_bytes = self.size_bytes if self._memory is None else max(self.size_bytes, self._memory.used_bytes)
            offset = aligned(used_bytes)
        self.entries.append([name, shape, offset, count])
        self._writes.append((offset, count, content))
        self.size_bytes = max(self.size_bytes, offset + count)


def _octets(element: object) -> bytes:
    if isinstance(element, bytes):
        return element
    if isinstance(element, str):
        return element.encode()
    return bytes(element) if isinstance(element, (bytearray, memoryview, np.bytes_)) else str(element).encode()


class BlockLayout:
    """The description of a message's blocks, checked once and used for every message that has it."""

    __slots__ = ("_blocks", "_end")

    def __init__(self, entries: Iterable[Any]) -> None:
        """Raises:
        ValueError, TypeError: `entries` is no list of blocks.
        """
        #: Element type (None: BYTES), shape, first byte, bytes.
        self._blocks: list[tuple[np.dtype[Any] | None, tuple[int, ...], int, int]] = []
        self._end = 0
        for name, shape, offset, count in entries:
            if not (type(name) is str and type(offset) is type(count) is int and all(type(size) is int and size >= 0 for size in shape)):
                raise ValueError("a block's description is damaged")
            if offset < 0 or count < 0 or offset % ALIGNMENT:
                raise ValueError(f"a block of {count} bytes begins at byte {offset}")
            if name == BYTES:
                self._blocks.append((None, tuple(shape), offset, count))
            else:
                dtype = np.dtype(name)
                if dtype.kind not in _KINDS or dtype.hasobject or prod(shape) * dtype.itemsize != count:
                    raise ValueError(f"a block of shape {shape} has elements of type '{name}' and {count} bytes")
                self._blocks.append((dtype, tuple(shape), offset, count))
            self._end = max(self._end, offset + count)

    def read(self, payload: Octets) -> list[Array]:
        """The blocks, as views of `payload` (BYTES: new arrays of `bytes`).

        Raises:
            ValueError: `payload` is too short.
        """
        if self._end > payload.size:
            raise ValueError(f"a block ends at byte {self._end} of {payload.size}")
        return [
            np.ndarray(shape, dtype, payload, offset) if dtype is not None else _strings(payload[offset : offset + count], shape)
            for dtype, shape, offset, count in self._blocks
        ]


def read_blocks(entries: Iterable[Any], payload: Octets) -> list[Array]:
    """The blocks that `entries` describe; see `BlockLayout`.

    Raises:
        ValueError, TypeError: a description is damaged, or does not fit `payload`.
    """
    return BlockLayout(entries).read(payload)


def _strings(target: Octets, shape: Sequence[int]) -> Array:
    elements = 1
    for size in shape:
        elements *= size
    if elements * 4 > target.size:
        raise ValueError(f"{elements} strings do not fit {target.size} bytes")
    ends = np.cumsum(target[: elements * 4].view(np.uint32), dtype=np.int64) + elements * 4
    if elements and int(ends[-1]) != target.size:
        raise ValueError("the sizes of strings do not fit their bytes")
    text = target.tobytes()
    strings: Array = np.empty(elements, np.object_)
    at = elements * 4
    for position, end in enumerate(ends.tolist()):
        strings[position] = text[at:end]
        at = end
    return strings.reshape(shape)


def to_json(value: Any) -> bytes:
    """`value` as the JSON of a message."""
    return json.dumps(value, separators=(",", ":")).encode()
