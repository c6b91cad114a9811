"""`batched`: joins the requests of several clients into one call of the model."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

ATTRIBUTE: Final = "__stoker_batching__"
MAX_DELAY_MS: Final = 60_000.0
MAX_ROWS: Final = 1 << 20
ModelT = TypeVar("ModelT", bound=Callable[..., Any])


class Batching:
    """How requests are joined.

    Attributes:
        max: Rows of one call at most.
        delay_ms: How long a request waits for a fuller batch, milliseconds.
    """

    def __init__(self, max: int, delay_ms: float) -> None:
        self.max = max
        self.delay_ms = delay_ms


def batched(*, max: int, delay_ms: float = 0.0) -> Callable[[ModelT], ModelT]:
    """Lets `predict` take the rows of several requests in one call; all its arrays begin with the dimension "n".

    Args:
        max: Rows of one call at most.
        delay_ms: How long a request waits for a fuller batch, milliseconds.

    Raises:
        ValueError: an argument is out of range.
    """
    if not isinstance(max, int) or not 1 <= max <= MAX_ROWS:
        raise ValueError(f"batched: max takes a whole number from 1 to {MAX_ROWS}, not {max!r}")
    if not 0 <= delay_ms <= MAX_DELAY_MS:
        raise ValueError(f"batched: delay_ms takes milliseconds from 0 to {MAX_DELAY_MS:g}, not {delay_ms!r}")

    def mark(model: ModelT) -> ModelT:
        setattr(model, ATTRIBUTE, Batching(max, delay_ms))
        return model

    return mark
