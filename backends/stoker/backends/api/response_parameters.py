"""Parameters of a response: `OutputsWithParameters` are outputs that carry them, from the model to the response for the client."""

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

ParameterValue = bool | int | float | str

#: Parameters of one response, and their size: the UTF-8 bytes of all names and texts.
MAX_PARAMETERS: Final = 64
MAX_PARAMETERS_BYTES: Final = 16 << 10
#: Parameters that the protocols set themselves.
RESERVED: Final = frozenset({"triton_final_response", "binary_data_size"})
_INT64: Final = range(-(1 << 63), 1 << 63)


class OutputsWithParameters(dict[str, "np.ndarray[tuple[int, ...], np.dtype[np.generic]]"]):
    """The outputs of a response by name, which has parameters. A response without parameters is a plain dict.

    Attributes:
        parameters: By name.
    """

    __slots__ = ("parameters",)

    def __init__(
        self, outputs: "Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]", parameters: Mapping[str, ParameterValue]
    ) -> None:
        super().__init__(outputs)
        self.parameters = parameters


def parameters_of(outputs: Mapping[str, Any]) -> Mapping[str, ParameterValue] | None:
    """The parameters of a response with these outputs; None: it has none."""
    return outputs.parameters if isinstance(outputs, OutputsWithParameters) else None


def with_parameters(outputs: Mapping[str, Any], parameters: Mapping[str, ParameterValue]) -> Mapping[str, Any]:
    """`outputs` with `parameters`; `outputs` themselves, if there are none."""
    return OutputsWithParameters(outputs, parameters) if parameters else outputs


def check_response_parameters(parameters: Any) -> dict[str, ParameterValue]:
    """A copy of the parameters of a response, if every protocol can send them.

    Raises:
        ValueError: a name or a value is of another type, too many or too large, or a name is one of `RESERVED`; the text says which.
    """
    if not isinstance(parameters, Mapping):
        raise ValueError(f"the parameters of a response are a dict, not {type(parameters).__name__}")
    if len(parameters) > MAX_PARAMETERS:
        raise ValueError(f"a response has at most {MAX_PARAMETERS} parameters, not {len(parameters)}")
    checked: dict[str, ParameterValue] = {}
    size_bytes = 0
    for name, value in parameters.items():
        if not isinstance(name, str) or not isinstance(value, (bool, int, float, str)):
            raise ValueError(f"parameter {str(name)[:100]!r} takes a bool, int, float or str, not {type(value).__name__}")
        if name in RESERVED:
            raise ValueError(f"parameter '{name}' is set by the server: use another name")
        if isinstance(value, int) and value not in _INT64:
            raise ValueError(f"parameter '{name[:100]}' is outside the range of a 64-bit integer")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"parameter '{name[:100]}' is {value}, which JSON cannot hold: send it as a text")
        try:
            size_bytes += len(name.encode()) + (len(value.encode()) if isinstance(value, str) else 0)
        except UnicodeEncodeError:
            raise ValueError(f"parameter {ascii(name)[:100]} holds text that is not valid Unicode") from None
        # A subclass, such as numpy.float64 or an enum, becomes the plain type.
        plain: type[ParameterValue] = next(kind for kind in (bool, int, float, str) if isinstance(value, kind))
        checked[name] = value if type(value) is plain else plain(value)
    if size_bytes > MAX_PARAMETERS_BYTES:
        raise ValueError(f"the parameters of a response take at most {MAX_PARAMETERS_BYTES} bytes, not {size_bytes}")
    return checked
