"""The fitted constants of each device's cost model, with which a fit begins."""


def fitted_constants(device: str) -> object:
    """Returns the dataclass of constants of `device`.

    Raises:
        ValueError: there is no such device.
    """
    if device == "gcu":
        from stoker.backends.gcu.compile.cost_model import FITTED as GCU_FITTED

        return GCU_FITTED
    if device == "ipu":
        from stoker.backends.ipu.compile.constants import FITTED as IPU_FITTED

        return IPU_FITTED
    raise ValueError(f"there is no device '{device[:40]}'; there are gcu, ipu")
