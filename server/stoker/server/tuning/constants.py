"""The settings of the self-tuning controllers, and their constants, with the measurements behind them.

Times were measured on a virtual machine with two cores; the ADR that is named with each group holds the figures. The ONNX backend keeps
the constants of its own controllers (`one_thread.py`, `memory_peaks.py`), because a backend never imports the server.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from stoker.server.core.flag import Panel, number

# Busy polling (docs/adr/0067-busy-polling.md): a sleeping thread wakes up some 50 us late.

#: Longest poll for the next request, microseconds. The next request of a closed-loop client arrives within 100 to 150 us.
BUSY_POLL_US: Final = 250
#: Consecutive prompt requests before the first poll; doubled by each unsuccessful poll, up to `BUSY_POLL_MOST_RUN`.
BUSY_POLL_FIRST_RUN: Final = 8
BUSY_POLL_MOST_RUN: Final = 4096
#: Consecutive successful polls that reset the doubling.
BUSY_POLL_GOOD_RUN: Final = 256

# Batch window (docs/adr/0006-batch-window.md).

#: Consecutive reads of one connection after which its requests run at the end of the read.
SINGLE_CONNECTION_READS: Final = 16

# Inline-execution policy (docs/adr/0007-inline-execution-policy.md): a hop to a worker thread and back costs 33 to 41 us.

#: Bound on the 99th percentile of a batch that runs on the event loop, nanoseconds of CPU time.
INLINE_SLOW_NS: Final = 200_000
#: A batch in the thread counts as quick below this: clearly less than `INLINE_SLOW_NS`, so that a model does not alternate.
INLINE_QUICK_NS: Final = 150_000
#: One batch of this length moves its size class back to the thread.
INLINE_EVICT_NS: Final = 10 * INLINE_SLOW_NS
#: One batch of this length keeps the model in the thread permanently: CPU time, and wall time, which includes waiting.
INLINE_BAN_CPU_NS: Final = 100 * INLINE_SLOW_NS
INLINE_BAN_WALL_NS: Final = 500 * INLINE_SLOW_NS
#: Quick batches before the first stay on the loop; multiplied by `INLINE_MORE_RUNS` after each eviction, up to `INLINE_MOST_RUNS`.
INLINE_FIRST_RUNS: Final = 32
INLINE_MORE_RUNS: Final = 8
INLINE_MOST_RUNS: Final = 16_384
#: Quick batches that one slow batch in the thread cancels: at most one batch in a hundred may be slow.
INLINE_SLOW_COST_RUNS: Final = 100
#: Of so many batches on the loop, this number may be slow.
INLINE_WINDOW_RUNS: Final = 256
INLINE_WINDOW_SLOW: Final = 2
#: A stay of more batches than this resets the number of quick batches for the next stay.
INLINE_LONG_DWELL_RUNS: Final = 2_048

# Idle heap trim (docs/adr/0071-idle-heap-trim.md): a trim takes some milliseconds.

#: Time between two checks, seconds.
TRIM_PERIOD_S: Final = 5.0
#: The server is idle below this share of one core.
TRIM_IDLE_SHARE: Final = 0.05
#: CPU time since the last trim after which there may be memory to return, seconds.
TRIM_WORK_S: Final = 0.5

# Garbage collection (garbage_collection.py): 1000 requests in flight are some 15,000 container objects.

#: New container objects that start a collection of the young ones, which then takes up to 10 ms.
COLLECTION_OBJECTS: Final = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSettings:
    """The settings of the controllers.

    Attributes:
        is_on: Whether they adapt to measurements.
        busy_poll_us: 0: the event loop does not poll.
    """

    is_on: bool = True
    busy_poll_us: Annotated[
        int,
        number(
            "busy-poll-us",
            0,
            10_000,
            panel=Panel.SERVING,
            text="How long the event loop polls for the next request of a client that sends one at a time, in microseconds; 0: off.",
        ),
    ] = BUSY_POLL_US
