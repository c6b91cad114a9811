"""How clients see a compiled model: its tensors with the layouts that the request names for its inputs."""

import dataclasses

import onnx

from compiler.errors import OptionError
from compiler.model_compiler.request import CompileRequest
from compiler.repository_writer import ServedTensor
from compiler.served_tensors import served_tensors

#: An image has its channels and two dimensions beside the batch.
_IMAGE_DIMS = 3

Border = tuple[tuple[ServedTensor, ...], tuple[ServedTensor, ...]]


def batched_border(source: onnx.ModelProto, compiled: onnx.ModelProto, request: CompileRequest) -> Border:
    """Inputs and outputs of a model whose tensors all have the batch as dimension 0.

    Args:
        source: Its element types are what clients send and get.
        compiled: Its shapes are static.
        request: Has the layouts.

    Raises:
        CompileError: a tensor has a type or shape that no client could be told.
        OptionError: see `with_layouts`.
    """
    inputs, outputs = served_tensors(source, compiled, is_batched=True)
    return with_layouts(inputs, request), tuple(outputs)


def with_layouts(inputs: list[ServedTensor], request: CompileRequest) -> tuple[ServedTensor, ...]:
    """`inputs` with the layouts of `input_formats`, which has one for each input, in order, or none at all.

    Raises:
        OptionError: there are too many or too few, or one is given to what is no image.
    """
    layouts = request.input_formats or (None,) * len(inputs)
    names = ", ".join(f"'{each.name}'" for each in inputs)
    if len(layouts) != len(inputs):
        raise OptionError(f"input_formats: {len(layouts)} formats for {len(inputs)} inputs: {names}; write null for what is no image")
    made = []
    for each, layout in zip(inputs, layouts, strict=True):
        if layout is not None and len(each.dims) != _IMAGE_DIMS:
            raise OptionError(
                f"input_formats: {layout.name.lower()} for input '{each.name}', which has dims {list(each.dims)}; an image has three"
            )
        made.append(each if layout is None else dataclasses.replace(each, layout=layout.value))
    return tuple(made)
