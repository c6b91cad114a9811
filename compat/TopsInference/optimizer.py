"""`Optimizer`: builds engines of networks."""

import json
import logging
from collections.abc import Mapping
from typing import Any

from stoker.backends.gcu.runtime.errors import Status, StatusError
from TopsInference.constants import BuildFlag
from TopsInference.error_manager import recorded
from TopsInference.network import Network
from TopsInference.py_engine import PyEngine

logger = logging.getLogger(__name__)

_PRECISIONS = {BuildFlag.KDEFAULT: "fp32", BuildFlag.KFP16: "fp16", BuildFlag.KFP16_MIX: "mixed"}


class Optimizer:
    """Confined to: one thread."""

    def __init__(self) -> None:
        self._flag = BuildFlag.KDEFAULT
        self._options: dict[str, Any] = {}

    @recorded
    def set_build_flag(self, flag: int) -> bool:
        """What engines compute in: `KDEFAULT`, `KFP16` or `KFP16_MIX`.

        Raises:
            StatusError: anything else; the device has no int8, and engines cannot be refitted here.
        """
        if flag in (BuildFlag.KINT8_MIX_FP32,):
            raise StatusError(Status.TIF_UN_SUPPORTED_DATA_TYPE, "set_build_flag: the device computes in fp32 and fp16, not in int8")
        if flag not in _PRECISIONS:
            known = ", ".join(f"{each.name} ({each.value})" for each in _PRECISIONS)
            raise StatusError(Status.TIF_INVALID_PARAM, f"set_build_flag: {flag!r} cannot be built; there are {known}")
        self._flag = BuildFlag(flag)
        return True

    def get_build_flag(self) -> BuildFlag:
        """The flag that was set last."""
        return self._flag

    @recorded
    def set_compile_options(self, options: str | Mapping[str, Any]) -> bool:
        """Options of the compiler, as a dict or its JSON: `resource_mode` counts; all others are accepted, and logged.

        Raises:
            StatusError: they are no JSON object.
        """
        if isinstance(options, str):
            try:
                options = json.loads(options)
            except ValueError as error:
                raise StatusError(Status.TIF_INVALID_PARAM, f"set_compile_options: no JSON: {error}") from error
        if not isinstance(options, Mapping):
            raise StatusError(
                Status.TIF_INVALID_PARAM, f"set_compile_options: a JSON object or dict is needed, not {type(options).__name__}"
            )
        for name in options:
            if name != "resource_mode":
                logger.warning("set_compile_options: '%s' has no effect on a simulated device", name)
        self._options = dict(options)
        return True

    def get_compile_options(self) -> str:
        """The options that were set last, as JSON."""
        return json.dumps(self._options)

    @recorded
    def build(self, network: Network) -> PyEngine:
        """An engine for `network`, which a parser has read.

        Raises:
            StatusError: it is none, an option is wrong, or the model exceeds a limit of the device.
        """
        if not hasattr(network, "build"):
            raise StatusError(Status.TIF_INVALID_PARAM, f"build: what a parser has read is needed, not {type(network).__name__}")
        resource_mode = str(self._options.get("resource_mode", ""))
        return PyEngine(network.build(build_flag=_PRECISIONS[self._flag], resource_mode=resource_mode))


def create_optimizer() -> Optimizer:
    """An optimizer with nothing set."""
    return Optimizer()
