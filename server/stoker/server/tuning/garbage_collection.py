"""Runs Python's cyclic garbage collector seldom while the server works.

The interpreter starts a collection after 700 new container objects. With 1000 requests in flight, each turn of the event loop makes
more, and a full collection looks at every object of the process: a tenth of the CPU time, and pauses of 60 ms. Requests leave no
reference cycles, failed ones included (tests check it), so that reference counts free their memory. What remains are a few objects of
each connection and each load.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from stoker.server.tuning.constants import COLLECTION_OBJECTS


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """Collects young objects only once there are `COLLECTION_OBJECTS` more of them than before, for the time of the block."""
    thresholds = gc.get_threshold()
    gc.set_threshold(COLLECTION_OBJECTS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
