"""Layouts of responses: the constant bytes of a message, kept per structure, so that only elements are written.

A dialect describes the layout of a response once: the bytes between the raw elements of its outputs. `Layouts` keeps the
layouts and finds that of the next response. Where there is none, the dialect encodes the response in full.
"""

from collections.abc import Callable, Sequence
from typing import Final

from stoker.backends.api.wire import LENGTH, encoded_varint
from stoker.server.codecs.memo import BoundedCache
from stoker.server.codecs.tensors import Raw
from stoker.server.core.request import Array, InferResponse

#: Arrays above this size, in bytes, are copied only once.
_COPIED_BYTES: Final = 8192


def map_entry_head(number: int, key: str, tags: Sequence[bytes], size_bytes: int) -> bytes:
    """The bytes of an entry of the map `number` up to the `size_bytes` bytes that end it.

    `tags` has, for each nested message from the outermost, the bytes that precede the length of what ends it.
    """
    head, size = b"", size_bytes
    for tag in reversed(tags):
        head = tag + encoded_varint(size) + head
        size = len(head) + size_bytes
    name = key.encode()
    head = (
        encoded_varint(1 << 3 | LENGTH) + encoded_varint(len(name)) + name + encoded_varint(2 << 3 | LENGTH) + encoded_varint(size) + head
    )
    return encoded_varint(number << 3 | LENGTH) + encoded_varint(len(head) + size_bytes) + head


class Part:
    """An output of a layout.

    Attributes:
        name: The output.
        shape: Its shape.
        before: The bytes before its elements.
        is_small: Whether the elements are copied twice, which for small ones takes half as long as making a view.
    """

    __slots__ = ("before", "is_small", "name", "shape")

    def __init__(self, name: str, array: Array, before: bytes) -> None:
        self.name = name
        self.shape: tuple[int, ...] = array.shape
        self.before = before
        self.is_small: bool = array.nbytes <= _COPIED_BYTES


class Layout:
    """The common bytes of the responses with outputs of the same shapes. INVARIANT: it keeps its signature alive.

    Attributes:
        signature, model_name, model_version: Of the response.
        start: The bytes before those that the response adds, such as its id.
        parts: The outputs.
    """

    __slots__ = ("model_name", "model_version", "parts", "signature", "start")

    def __init__(self, response: InferResponse, start: bytes, parts: list[Part]) -> None:
        self.signature = response.signature
        self.model_name = response.model_name
        self.model_version = response.model_version
        self.start = start
        self.parts = parts

    def filled(self, response: InferResponse, added: bytes) -> bytes | None:
        """The encoded `response`, with the bytes `added` after the start; None if the response differs from the layout in more than its
        elements.
        """
        outputs = response.outputs
        parts = self.parts
        if len(outputs) != len(parts) or response.model_version != self.model_version or response.model_name != self.model_name:
            return None
        pieces: list[Raw] = [self.start, added]
        for at, (name, array) in enumerate(outputs.items()):
            part = parts[at]
            if name != part.name or array.shape != part.shape:
                return None
            pieces.append(part.before)
            # A large tensor is a view, so that the join is its only copy.
            pieces.append(array.tobytes() if part.is_small or not array.flags.c_contiguous else array.data)
        return b"".join(pieces)


Variant = int | None
"""What the encoding of a response depends on besides the response, such as the requested version."""
Describe = Callable[[InferResponse, Variant], Layout | None]
"""Makes the layout of a response; None: it has none."""


class Layouts:
    """The layouts of one dialect. Confined to: the event loop."""

    __slots__ = ("_describe", "_kept", "_last")

    def __init__(self, describe: Describe) -> None:
        self._describe = describe
        #: The last layout of each signature and variant. By the signature's `id`, because hashing it is slow. The layout keeps the
        #: signature alive, so that its `id` is unique.
        self._last: BoundedCache[tuple[int, Variant], Layout] = BoundedCache()
        self._kept: BoundedCache[object, Layout] = BoundedCache()

    def encode(self, response: InferResponse, variant: Variant = None, added: bytes = b"") -> bytes | None:
        """The encoded `response`, with the bytes `added` after its start; None: the dialect must encode it in full."""
        last_key = id(response.signature), variant
        layout = self._last.entries.get(last_key)
        if layout is not None and (encoded := layout.filled(response, added)) is not None:
            return encoded
        outputs = response.outputs
        shapes = [array.shape for array in outputs.values()]
        key = (last_key, response.model_name, response.model_version, *outputs, *shapes)
        layout = self._kept.entries.get(key) or self._describe(response, variant)
        if layout is None:
            return None
        self._kept.put(key, layout)
        self._last.put(last_key, layout)
        return layout.filled(response, added)
