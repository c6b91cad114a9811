"""`resource_mode`: how many clusters of the card an executable is meant to run on.

TopsInference takes it as a key of `set_compile_options`; which values its compiler knows is not published. Here it is a number of clusters,
`<n>c` or plain `<n>`, or empty for all; it says what the summary's latency and throughput are modelled for. The executable runs on any.
"""

from stoker.backends.gcu.hardware import GcuHardware
from stoker.compiler.errors import OptionError


def clusters_of(resource_mode: str, hardware: GcuHardware) -> int:
    """The clusters that `resource_mode` names.

    Raises:
        OptionError: it is no number of clusters that the card has.
    """
    text = resource_mode.strip().lower()
    if text in ("", "default", "all"):
        return hardware.clusters
    number = text.removesuffix("c")
    if not (number.isascii() and number.isdecimal() and 1 <= int(number) <= hardware.clusters):
        raise OptionError(
            f"resource_mode is '{resource_mode}': expected a number of clusters from 1 to {hardware.clusters}, such as '1c', or 'all'"
        )
    return int(number)
