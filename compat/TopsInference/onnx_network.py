"""`OnnxNetwork` connects the runtime's parser and optimizer to the compiler.

Compiler errors are raised as the runtime's `StatusError`.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from stoker.backends.gcu.compile.limits import status_of
from stoker.backends.gcu.compile.target import build
from stoker.backends.gcu.program import GcuExecutable
from stoker.backends.gcu.runtime.errors import Status, StatusError
from stoker.compiler.convert.source import checked, read_onnx
from stoker.compiler.errors import CompileError
from stoker.compiler.target import fed_inputs
from TopsInference.constants import DATA_TYPES, DType


class OnnxNetwork:
    """Implements `TopsInference.network.Network`.

    Attributes:
        model: The parsed model.
        name: Name of the engines built from it.
    """

    def __init__(self, model: onnx.ModelProto, name: str, input_shapes: Mapping[str, Sequence[int]], outputs: Sequence[str]) -> None:
        """A model, with whole shapes for some of its inputs; `outputs` are those wanted, all if empty."""
        self.model = model
        self.name = name
        self._input_shapes = input_shapes
        self._outputs = outputs

    def get_layer_num(self) -> int:
        return len(self.model.graph.node)

    def dump(self) -> None:
        graph = self.model.graph
        lines = [f"network '{self.name}': {len(graph.node)} layers"]
        lines += [f"  input  {_described(value)}" for value in fed_inputs(self.model)]
        lines += [f"  output {_described(value)}" for value in graph.output]
        lines += [
            f"  {index}: {node.op_type} '{node.name}' ({', '.join(node.input)}) -> {', '.join(node.output)}"
            for index, node in enumerate(graph.node)
        ]
        sys.stdout.write("\n".join(lines) + "\n")

    def build(self, *, build_flag: str, resource_mode: str) -> GcuExecutable:
        try:
            return build(
                self.model,
                name=self.name,
                input_shapes=self._input_shapes,
                outputs=self._outputs,
                build_flag=build_flag,
                resource_mode=resource_mode,
            )
        except CompileError as error:
            raise _raised(error) from error


def read_network(
    model: Path | bytes | onnx.ModelProto,
    *,
    input_names: Sequence[str] | None,
    input_shapes: Sequence[Sequence[int]] | None,
    input_types: Sequence[DType] | None,
    output_names: Sequence[str] | None,
    output_types: Sequence[DType] | None,
) -> OnnxNetwork:
    """See `TopsInference.network.read_network`."""
    name = model.stem if isinstance(model, Path) else "model"
    read = _read(model)
    inputs, outputs = {each.name: each for each in fed_inputs(read)}, {each.name: each for each in read.graph.output}
    _reject_unknown("input", input_names, inputs)
    _reject_unknown("output", output_names, outputs)
    missing = [each for each in inputs if input_names is not None and each not in input_names]
    if missing:
        raise StatusError(Status.TIF_NOT_FOUND, f"set_input_names lacks inputs of the model: {', '.join(missing)}")
    ordered_inputs = [inputs[each] for each in input_names or inputs]
    ordered_outputs = [outputs[each] for each in output_names or outputs]
    _check_types("input", ordered_inputs, input_types)
    _check_types("output", ordered_outputs, output_types)
    shapes: dict[str, Sequence[int]] = {}
    if input_shapes is not None:
        if len(input_shapes) != len(ordered_inputs):
            names = ", ".join(each.name for each in ordered_inputs)
            raise StatusError(
                Status.TIF_MIS_MATCHED_SHAPE_OR_DIM,
                f"set_input_shapes has {len(input_shapes)} shapes; the model has {len(ordered_inputs)} inputs ({names})",
            )
        shapes = {value.name: tuple(shape) for value, shape in zip(ordered_inputs, input_shapes, strict=True)}
        _check_shapes(ordered_inputs, shapes)
    return OnnxNetwork(
        read, read.graph.name if not isinstance(model, Path) and read.graph.name else name, shapes, tuple(output_names or ())
    )


def _read(model: Path | bytes | onnx.ModelProto) -> onnx.ModelProto:
    try:
        if isinstance(model, Path):
            return checked(read_onnx(model), str(model))
        if isinstance(model, bytes):
            return checked(onnx.load_model_from_string(model), "the model")
        if isinstance(model, onnx.ModelProto):
            return checked(model, "the model")
    except DecodeError as error:
        raise StatusError(Status.TIF_PARSER_UNSUPPORTED_MODEL, f"these bytes are no ONNX model: {error}") from error
    except CompileError as error:
        raise StatusError(Status.TIF_PARSER_UNSUPPORTED_MODEL, str(error)) from error
    raise StatusError(Status.TIF_INVALID_PARAM, f"an onnx.ModelProto is needed, not {type(model).__name__}")


def _reject_unknown(kind: str, names: Sequence[str] | None, known: Mapping[str, onnx.ValueInfoProto]) -> None:
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise StatusError(
            Status.TIF_NOT_FOUND, f"set_{kind}_names: the model has no {kind} {', '.join(unknown)}; its {kind}s are {', '.join(known)}"
        )


def _check_types(kind: str, values: Sequence[onnx.ValueInfoProto], types: Sequence[DType] | None) -> None:
    if types is None:
        return
    if len(types) != len(values):
        raise StatusError(Status.TIF_MIS_MATCHED_DATA_TYPE, f"set_{kind}_dtypes has {len(types)} types for {len(values)} {kind}s")
    for value, wanted in zip(values, types, strict=True):
        found = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if found != DATA_TYPES[wanted].numpy:
            raise StatusError(
                Status.TIF_MIS_MATCHED_DATA_TYPE,
                f"set_{kind}_dtypes: {kind} '{value.name}' is {np.dtype(found)} in the model, not {wanted.name}",
            )


def _check_shapes(values: Sequence[onnx.ValueInfoProto], shapes: Mapping[str, Sequence[int]]) -> None:
    for value in values:
        dims = value.type.tensor_type.shape.dim
        wanted = shapes[value.name]
        if value.type.tensor_type.HasField("shape") and (
            len(dims) != len(wanted)
            or any(dim.HasField("dim_value") and dim.dim_value not in (0, size) for dim, size in zip(dims, wanted, strict=True))
        ):
            raise StatusError(
                Status.TIF_MIS_MATCHED_SHAPE_OR_DIM,
                f"set_input_shapes: input '{value.name}' is {_described(value)} in the model; {list(wanted)} does not fit",
            )


def _described(value: onnx.ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    sizes = ", ".join(str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in tensor.shape.dim)
    return f"{value.name}: {onnx.TensorProto.DataType.Name(tensor.elem_type)} [{sizes}]"


def _raised(error: CompileError) -> StatusError:
    """Converts a compiler error to the runtime's `StatusError`."""
    status = status_of(error).value
    return StatusError(status, str(error).removesuffix(f" [TopsInference: {status.name}]"))
