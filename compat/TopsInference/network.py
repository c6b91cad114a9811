"""The interface between runtime and compiler: a parser returns a network, and an optimizer compiles it.

A serving installation has no compiler. The compiler is imported by name when a model is read; if it is missing, that call fails.
"""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from stoker.backends.gcu.program import GcuExecutable
from stoker.backends.gcu.runtime.errors import Status, StatusError
from TopsInference.constants import DType

#: Module that implements the compiler's side; it defines `read_network`.
_COMPILER = "TopsInference.onnx_network"


class Network(Protocol):
    """A parsed model."""

    def dump(self) -> None:
        """Prints the model, one line per layer."""

    def get_layer_num(self) -> int:
        """Returns the number of layers (nodes)."""

    def build(self, *, build_flag: str, resource_mode: str) -> GcuExecutable:
        """Compiles the model.

        Args:
            build_flag: `fp32`, `fp16` or `mixed`.
            resource_mode: As the compiler's option of this name.

        Raises:
            StatusError: an option is wrong, or the model exceeds a limit of the device.
        """


def read_network(
    model: Path | bytes | Any,
    *,
    input_names: Sequence[str] | None,
    input_shapes: Sequence[Sequence[int]] | None,
    input_dtypes: Sequence[DType] | None,
    output_names: Sequence[str] | None,
    output_dtypes: Sequence[DType] | None,
) -> Network:
    """Reads `model`: an ONNX file, its bytes, or an `onnx.ModelProto`.

    Args:
        model: What to read.
        input_names: Of all its inputs, in the order in which the next two are given; None: the model's own.
        input_shapes: Whole shapes, batch included.
        input_dtypes: Which must be those of the model.
        output_names: Of the outputs wanted; None: all.
        output_dtypes: Which must be those of the model.

    Raises:
        StatusError: the compiler is not installed, the model cannot be read, or it is not what the arguments say.
    """
    try:
        module = importlib.import_module(_COMPILER)
    except ImportError as error:
        raise StatusError(
            Status.TIF_RUNTIME_PREREQUISITE_MISSING,
            f"reading a model needs the compiler, which is not installed here ({error.name} is missing): pip install 'stoker[compile]'",
        ) from error
    settings: Mapping[str, Any] = {
        "input_names": input_names,
        "input_shapes": input_shapes,
        "input_types": None if input_dtypes is None else list(input_dtypes),
        "output_names": output_names,
        "output_types": None if output_dtypes is None else list(output_dtypes),
    }
    return cast("Network", module.read_network(model, **settings))
