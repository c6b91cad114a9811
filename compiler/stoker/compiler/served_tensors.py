"""How clients see a compiled model's inputs and outputs: the source model's names and element types, one item's dimensions."""

from collections.abc import Iterable, Mapping, Sequence

import onnx

from stoker.backends.api.tensor import BY_CONFIG_NAME, DataType
from stoker.compiler.errors import CompileError
from stoker.compiler.repository_writer import ServedTensor

_NAMES = {"FLOAT": "TYPE_FP32", "DOUBLE": "TYPE_FP64", "FLOAT16": "TYPE_FP16", "BFLOAT16": "TYPE_BF16", "STRING": "TYPE_STRING"}


def served_tensors(
    source: onnx.ModelProto,
    converted: onnx.ModelProto,
    *,
    is_batched: bool,
    datatypes: Mapping[str, Sequence[DataType]] | None = None,
) -> tuple[list[ServedTensor], list[ServedTensor]]:
    """Inputs and outputs for config.pbtxt.

    Args:
        source: Its element types are what clients send and get where the server casts them to what the artefact takes.
        converted: What only it has, clients see as it has it. A dimension that it leaves open is -1.
        is_batched: Whether dimension 0 is the batch, which config.pbtxt leaves out.
        datatypes: See `Artefact.datatypes`.

    Raises:
        CompileError: a tensor has a type that no request can carry, or lacks a shape.
    """
    types = {value.name: value.type.tensor_type.elem_type for value in (*source.graph.input, *source.graph.output)}
    allowed = {name: tuple(each.config_name for each in kinds) for name, kinds in (datatypes or {}).items()}
    given = {each.name for each in converted.graph.initializer}
    fed = [value for value in converted.graph.input if value.name not in given]
    return _tensors(fed, types, allowed, is_batched), _tensors(converted.graph.output, types, allowed, is_batched)


def _tensors(
    values: Iterable[onnx.ValueInfoProto], types: Mapping[str, int], allowed: Mapping[str, tuple[str, ...]], is_batched: bool
) -> list[ServedTensor]:
    served = []
    for value in values:
        own = value.type.tensor_type
        dims = tuple(size.dim_value if size.HasField("dim_value") else -1 for size in own.shape.dim)
        if 0 in dims or (is_batched and not dims) or not own.HasField("shape"):
            raise CompileError(f"tensor '{value.name}' has the shape {list(dims)}: no request can carry it")
        kinds = allowed.get(value.name) or (config_name(value.name, own.elem_type),)
        wanted = config_name(value.name, types.get(value.name, own.elem_type))
        datatype = wanted if wanted in kinds else kinds[0]
        served.append(ServedTensor(value.name, datatype, dims[1:] if is_batched else dims, kinds[0]))
    return served


def config_name(tensor: str, element_type: int) -> str:
    """config.pbtxt's name of an ONNX element type, which `tensor` has.

    Raises:
        CompileError: no request can carry it.
    """
    name = onnx.TensorProto.DataType.Name(element_type)
    spelled = _NAMES.get(name, f"TYPE_{name}")
    if spelled not in BY_CONFIG_NAME:
        raise CompileError(f"tensor '{tensor}' is {name}, which no request can carry")
    return spelled
