"""The IPU systems that are simulated, and their published figures.

Sources: [P] Graphcore's product pages and data sheets; [R] the PopRT repository; [C] PopART's and Poplibs' open code; [X] by arithmetic
from these. Where a figure was published twice with different values, the one consistent with the others is taken.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class IpuHardware:
    """One IPU of a system, and its links.

    Attributes:
        system: `M2000`, `C600` or `Bow`.
        ipu_version: The version in executables: 2 or 21.
        tiles: Number of tiles of one IPU [P].
        worker_threads: Number of worker threads of a tile [P].
        tile_memory_bytes: In-Processor-Memory of one tile [C].
        clock_hz: [R].
        fp16_flops, fp8_flops, fp32_flops: Matrix operations a cycle and tile [X from the peaks, P]; 0: no such unit.
        exchange_bytes: Bytes a cycle and tile over the exchange, all to all [X].
        memory_bytes_per_cycle: Bytes a cycle and tile to its own memory [X].
        host_link_bytes_per_s: Each way [P].
        ipu_link_bytes_per_s: Both ways together [P].
    """

    system: str
    ipu_version: int
    tiles: int = 1472
    worker_threads: int = 6
    tile_memory_bytes: int = 638_976
    clock_hz: float
    fp16_flops: int = 128
    fp8_flops: int = 0
    fp32_flops: int = 32
    exchange_bytes: float = 4.0
    memory_bytes_per_cycle: float = 24.0
    host_link_bytes_per_s: float
    ipu_link_bytes_per_s: float


M2000 = IpuHardware(
    system="M2000", ipu_version=2, clock_hz=1.33e9, host_link_bytes_per_s=12.5e9, ipu_link_bytes_per_s=320e9
)  # RoCE 100 GbE per host port
C600 = IpuHardware(
    system="C600", ipu_version=21, clock_hz=1.5e9, fp8_flops=256, host_link_bytes_per_s=32e9, ipu_link_bytes_per_s=128e9
)  # two PCIe Gen4 x8
BOW = IpuHardware(system="Bow", ipu_version=2, clock_hz=1.85e9, host_link_bytes_per_s=12.5e9, ipu_link_bytes_per_s=320e9)

SYSTEMS = {each.system: each for each in (M2000, C600, BOW)}
#: The default system for each version name in compiler and runtime options.
BY_VERSION = {"ipu2": M2000, "ipu21": C600}

#: Seconds to attach to a device and reset it. Assumed: no figure is published.
ATTACH_S = 0.25
#: Bytes of executable code per second that the host loads into an engine. Assumed: no figure is published.
ENGINE_BUILD_BYTES_PER_S = 500e6
