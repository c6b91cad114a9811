"""The numerics of a simulated device: a lowered ONNX graph on ONNX Runtime, or nothing.

The lowered graph is FP32 with a pair of Casts (to FLOAT16 or an 8-bit float and back) wherever the device stores a value. ONNX Runtime
keeps such pairs at every optimisation level, since a narrowing Cast changes values, and its fusions do not reach across them; so the
highest level, which is the fastest for convolutions, rounds exactly where the graph says (tests compare it bit by bit with a run of one
node at a time). One family of rewrites must stay off: those of QuantizeLinear and DequantizeLinear make integer kernels of products whose
operands are quantized, also where the type is an 8-bit float, for which there are none.
"""

import enum
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from stoker.backends.onnx_files.runtime import ORT_ERRORS

Array = npt.NDArray[Any]

#: ONNX Runtime's spelling of the types that anchors can have.
_NUMPY: Mapping[str, "np.dtype[Any]"] = {
    **{f"tensor({kind})": np.dtype(kind) for kind in ("float16", "double", "bool")},
    **{f"tensor({sign}int{bits})": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "tensor(float)": np.dtype(np.float32),
}
#: Fewest rows that a graph with a variable batch computes. Matrix products of a single row have kernels that sum in another order.
MIN_ROWS: Final = 2
#: Smallest batch that the compiler makes variable.
MIN_VARIABLE_BATCH: Final = 4
#: The attribute of an executable that says why the host pads batches.
PADDED_ON_HOST: Final = "padded_on_host"
_STATUS = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_SOURCE_POSITION = re.compile(r"\S+\.(?:cc|cpp|h):\d+ ")


class Numerics(enum.Enum):
    """Whether a simulated device computes."""

    REAL = "real"
    """Outputs are computed on the host."""
    OFF = "off"
    """Outputs are zeros of the right shape and dtype: for load and timing runs."""


class NumericsError(Exception):
    """ONNX Runtime rejected the graph, or failed while it ran it."""


@dataclass(frozen=True, slots=True)
class GraphValue:
    """An input or output of a graph, as far as ONNX Runtime tells.

    Attributes:
        shape: None stands for a dimension that is not fixed; empty: a scalar, or a rank that is not known.
        dtype: None: a type that numpy has not.
    """

    shape: tuple[int | None, ...]
    dtype: "np.dtype[Any] | None"

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join('?' if size is None else str(size) for size in self.shape)}]"

    def fits(self, shape: Sequence[int], dtype: "np.dtype[Any]") -> bool:
        """Whether an array of that shape and type can be this value."""
        if self.dtype is not None and self.dtype != dtype:
            return False
        return not self.shape or (
            len(shape) == len(self.shape) and all(own in (None, size) for own, size in zip(self.shape, shape, strict=True))
        )


class GraphRunner:
    """A graph on ONNX Runtime, on the CPU. One thread at a time.

    Attributes:
        inputs, outputs: By name, in the graph's order.
    """

    def __init__(
        self, onnx_bytes: bytes, threads: int = 1, *, custom_op_libraries: Sequence[Path] = (), weights: Mapping[str, Array] | None = None
    ) -> None:
        """Prepares the graph.

        Args:
            onnx_bytes: The serialised ModelProto.
            threads: Threads an operator may use.
            custom_op_libraries: Shared libraries with custom operators for ONNX Runtime. They run native code in this process.
            weights: Values of the initialisers that the graph names as external data; each must be one of its initialisers. They are
                shared, not copied: several graphs may have the same, and no caller may write to them.

        Raises:
            NumericsError: the graph, a library or a weight cannot be used.
        """
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        # Spinning threads would take cores from the other simulated devices of this host.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # Otherwise a graph could read any file below this process's folder as a weight.
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
        # The session refers to these arrays' memory; they live as long as it does.
        self._weights = {name: ort.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C")) for name, array in (weights or {}).items()}
        try:
            for library in custom_op_libraries:
                options.register_custom_ops_library(str(library))
            if self._weights:
                options.add_external_initializers(list(self._weights), list(self._weights.values()))
            # Without the fallback, which prints to stdout and tries the same provider once more.
            self._session = ort.InferenceSession(onnx_bytes, options, providers=["CPUExecutionProvider"], enable_fallback=0)
        except ORT_ERRORS as error:
            raise NumericsError(f"the lowered graph cannot be prepared: {_reason(error)}") from error
        self.inputs = {value.name: _value(value) for value in self._session.get_inputs()}
        self.outputs = {value.name: _value(value) for value in self._session.get_outputs()}

    def has_variable_rows(self, inputs: Collection[str]) -> bool:
        """Returns whether dimension 0 of all `inputs` is variable, so that a run may have fewer rows than the compiled batch."""
        return bool(inputs) and all(self.inputs[name].shape[:1] == (None,) for name in inputs)

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        """The values of `outputs` for `inputs`; both by their names in the graph.

        Raises:
            NumericsError: an input is missing or of the wrong shape or dtype, or an operator failed.
        """
        if not outputs:  # which ONNX Runtime takes for all of them
            return {}
        try:
            values = self._session.run(list(outputs), dict(inputs))
        except ORT_ERRORS as error:
            raise NumericsError(f"the lowered graph failed: {_reason(error)}") from error
        return {name: np.asarray(value) for name, value in zip(outputs, values, strict=True)}


def _value(found: Any) -> GraphValue:
    shape = tuple(size if isinstance(size, int) else None for size in found.shape)
    return GraphValue(shape, _NUMPY.get(found.type))


def _reason(error: Exception) -> str:
    """ONNX Runtime's text without its status prefix and without places in the sources of the machine that built it."""
    return _SOURCE_POSITION.sub("", _STATUS.sub("", str(error).strip())).strip() or type(error).__name__
