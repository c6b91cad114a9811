"""The link between host and device, as far as time is concerned."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostLink:
    """A link with a bandwidth and a fixed cost per transfer.

    Attributes:
        bytes_per_s: Bandwidth in one direction.
        latency_s: Cost of a transfer of any size.
    """

    bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0 or not self.latency_s >= 0:
            raise ValueError(
                f"a host link needs a positive bandwidth and no negative latency, not {self.bytes_per_s} B/s and {self.latency_s} s"
            )

    def transfer_s(self, size_bytes: int) -> float:
        """Seconds to move `size_bytes` one way."""
        return self.latency_s + size_bytes / self.bytes_per_s
