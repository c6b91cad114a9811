"""What the elements of BYTES tensors cost: each is an object of its own, however few bytes it came in."""

import math
from collections.abc import Iterable

from stoker.backends.api.errors import TooLarge
from stoker.server.core.limits import Limits

#: Up to so many elements a tensor is decoded and encoded on the event loop: a millisecond or two.
INLINE_STRINGS = 4096
#: A short Python bytes object and its places in a list and in an array.
_ELEMENT_BYTES = 64


def declared_count(shape: Iterable[int], most: int) -> int:
    """The elements that `shape` declares, at most `most`; a shape that makes no sense has none (it will be refused)."""
    dims = list(shape)
    return min(math.prod(dims), most) if dims and len(dims) <= 64 and all(size > 0 for size in dims) else min(1, most)


def strings_cost(count: int, limits: Limits) -> int:
    """Bytes of memory that `count` elements take beside their own bytes.

    Raises:
        TooLarge: more elements than one request may hold.
    """
    if count > limits.string_elements:
        raise TooLarge(f"the request holds {count} elements of data-type BYTES, more than the {limits.string_elements} allowed")
    return count * _ELEMENT_BYTES
