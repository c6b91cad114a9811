"""How long a simulated GCU card takes. Everything here is modelled, never measured: whoever shows it labels it simulated.

The run time of a compiled batch is in the executable (`CompiledBatch.run_s`), where the compiler's cost model put it. What the compiler
cannot know is how much is copied; that is here.
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
        """Seconds to move `size_bytes` one way."""
        return self.latency_s + size_bytes / self.bytes_per_s


#: Seconds from asking for a copy to its first byte. Assumed: a descriptor over PCIe and the card's DMA engine; no figure is published.
COPY_LATENCY_S = 10e-6
#: Share of the link's peak that a copy reaches. Assumed: what PCIe 4.0 devices commonly reach with large pinned buffers.
LINK_EFFICIENCY = 0.8


def host_link(hardware: GcuHardware) -> HostLink:
    """The card's link to the host, one way."""
    return HostLink(hardware.host_link_bytes_per_s * LINK_EFFICIENCY, COPY_LATENCY_S)


def copy_time_s(hardware: GcuHardware, size_bytes: int) -> float:
    """Modelled seconds to copy `size_bytes` between host and card, one way."""
    return host_link(hardware).transfer_s(size_bytes)


def run_time_s(batch: CompiledBatch, clusters: int) -> float:
    """Modelled seconds of one run of a compiled batch on that many clusters; more than it was planned for help no further.

    Raises:
        ValueError: there is no cluster.
    """
    if clusters < 1:
        raise ValueError(f"a run needs at least one cluster, not {clusters}")
    return batch.run_s[min(clusters, len(batch.run_s)) - 1]
