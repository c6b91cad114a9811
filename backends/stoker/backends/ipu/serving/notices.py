"""What an operator should know of the models on simulated IPUs when the server starts."""

from collections.abc import Iterator

from stoker.backends.ipu.serving.device_pool import DevicePool
from stoker.backends.simulated.numerics import Numerics


def pool_notices(pool: DevicePool) -> Iterator[str]:
    """One line each."""
    loaded_executables = pool.loaded_executables
    if not loaded_executables:
        return
    models = _listed([model for each in loaded_executables for model in each.models])
    yield f"{models} on simulated IPUs, of which there are {pool.counters.ipus}"
    for device, sharing in pool.shared_devices():
        names = "; ".join(_listed(each.models) for each in sharing)
        longest_s = max(each.load_s for each in sharing)
        yield (
            f"simulated IPU {device.id} is shared by {len(sharing)} executables ({names}), of which it holds one: they push each other "
            f"out, and each reload takes up to {longest_s:.2f} s of modelled time; more IPUs (sim_num_IPUs) or model fusion avoid that"
        )
    off = _listed([model for each in loaded_executables if each.options.numerics is Numerics.OFF for model in each.models])
    if off:
        yield f"numerics are off for {off}: all outputs are zeros"


def _listed(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in dict.fromkeys(names))
