"""Batch sizes that a model is compiled for, and which of them takes a batch. Pure."""

from bisect import bisect_left
from collections.abc import Sequence

#: Compiled models of one instance. Each holds its own reordered copy of the weights (130 to 170 MB for ResNet-50).
MAX_BUCKETS = 16
#: How many there are if the parameters name none.
DEFAULT_BUCKETS = 5


def default_buckets(max_batch_size: int) -> tuple[int, ...]:
    """1, `max_batch_size`, and powers of two between them: of these at most `DEFAULT_BUCKETS`, evenly spaced in the exponent.

    With all powers of two kept, less than half the rows of a batch are padding; with fewer, more may be.
    """
    sizes = [1 << exponent for exponent in range((max_batch_size - 1).bit_length())] + [max_batch_size]
    if len(sizes) <= DEFAULT_BUCKETS:
        return tuple(sizes)
    last = len(sizes) - 1
    return tuple(sizes[round(index * last / (DEFAULT_BUCKETS - 1))] for index in range(DEFAULT_BUCKETS))


def bucket_for(rows: int, buckets: Sequence[int]) -> int:
    """The smallest of `buckets`, which ascend, that takes `rows`. REQUIRES: rows <= buckets[-1]."""
    return buckets[bisect_left(buckets, rows)]
