"""Inputs in which one value that came stands for many: what they become is bounded and paid for before it is made.

TensorFlow's tensors, Adlik's too, may leave out values that repeat, and a list of Examples may have a context that belongs to each of them.
A few bytes on the wire are then any number of bytes in memory.
"""

from typing import Any

from stoker.backends.api.errors import TooLarge
from stoker.backends.api.model import TensorSpec
from stoker.server.core.limits import Limits


def repeated_bytes(spec: TensorSpec, value: Any, times: int) -> int:
    """Memory of `value` repeated `times` times as elements of the input `spec`. Strings count in full: backends copy each element."""
    return times * (spec.datatype.numpy.itemsize + (len(value) if spec.datatype.is_bytes else 0))


def check_expansion(grown_bytes: int, name: str, limits: Limits) -> None:
    """Refuses a request whose repeated values take `grown_bytes`, up to those of the input `name`.

    Raises:
        TooLarge: more than one request may grow by. It fits no better later.
    """
    if grown_bytes > limits.expansion_bytes:
        raise TooLarge(
            f"input '{name}': values that are given once for many elements take {grown_bytes} bytes, more than the "
            f"{limits.expansion_bytes} that one request may take (--limit expansion_bytes): send every element"
        )
