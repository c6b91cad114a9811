"""The counts of a simulated card; every value is simulated."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Direction(enum.Enum):
    """Of a copy over the host link."""

    TO_DEVICE = "to_device"
    TO_HOST = "to_host"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFigures:
    """Copies in one direction.

    Attributes:
        copies: How many.
        size_bytes: Bytes of all of them.
        busy_s: Modelled time that they took the link.
    """

    copies: int = 0
    size_bytes: int = 0
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFigures:
    """A snapshot of one card, since it was made.

    Attributes:
        hbm_bytes, hbm_used_bytes, hbm_peak_bytes: Of its memory: all, in use now, most in use at a time.
        cluster_busy_s: Modelled time that each cluster ran.
        copies: By direction.
        runs: Runs of compiled batches.
        samples: Samples in them, without padding.
        padded_samples: Samples of zeros that filled batches up.
        slow_runs: Runs that this host computed slower than the card would have.
        stream_wait_s: Time that callers spent waiting for streams, on the card's clock.
        streams: Streams that exist now.
    """

    hbm_bytes: int
    hbm_used_bytes: int = 0
    hbm_peak_bytes: int = 0
    cluster_busy_s: tuple[float, ...] = ()
    copies: Mapping[Direction, CopyFigures] = field(default_factory=dict)
    runs: int = 0
    samples: int = 0
    padded_samples: int = 0
    slow_runs: int = 0
    stream_wait_s: float = 0.0
    streams: int = 0
