"""Modelled times of a simulated GCU card. All times are modelled, never measured. Code that displays them must label them simulated.

The compiler's cost model stores the run time of a compiled batch in the executable (`CompiledBatch.run_s`). The compiler cannot know the
number of copied bytes, so this module computes copy times.
"""

from dataclasses import dataclass

from stoker.backends.gcu.hardware import GcuHardware
from stoker.backends.gcu.program import CompiledBatch


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
        """Returns the seconds to move `size_bytes` in one direction."""
        return self.latency_s + size_bytes / self.bytes_per_s


#: Seconds from the request of a copy to its first byte. Assumed: a descriptor over PCIe and the card's DMA engine; no figure is published.
COPY_LATENCY_S = 10e-6
#: Share of the link's peak that a copy reaches. Assumed: what PCIe 4.0 devices commonly reach with large pinned buffers.
LINK_EFFICIENCY = 0.8
#: Batches of one model instance that the server has in flight by default. A busy card completes no more than these in the latency of one.
DEFAULT_PIPELINE_DEPTH = 2


def host_link(hardware: GcuHardware) -> HostLink:
    """Returns the card's link to the host in one direction."""
    return HostLink(hardware.host_link_bytes_per_s * LINK_EFFICIENCY, COPY_LATENCY_S)


def copy_time_s(hardware: GcuHardware, size_bytes: int) -> float:
    """Returns the modelled seconds to copy `size_bytes` between host and card in one direction."""
    return host_link(hardware).transfer_s(size_bytes)


def run_time_s(batch: CompiledBatch, clusters: int) -> float:
    """Returns the modelled seconds of one run of a compiled batch on `clusters` clusters. More clusters than `run_s` has entries give no
    further speed-up.

    Raises:
        ValueError: the number of clusters is less than 1.
    """
    if clusters < 1:
        raise ValueError(f"a run needs at least one cluster, not {clusters}")
    return batch.run_s[min(clusters, len(batch.run_s)) - 1]
