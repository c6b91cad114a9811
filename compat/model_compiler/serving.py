"""How clients see a compiled model: its tensors with the layouts that the request names for its inputs."""

import dataclasses
import logging

import onnx

from model_compiler.request import CompileRequest
from stoker.compiler.errors import OptionError
from stoker.compiler.repository_writer import ServedTensor, served_tensors
from stoker.compiler.target import Artefact

logger = logging.getLogger(__name__)

#: An image has its channels and two dimensions beside the batch.
_IMAGE_DIMS = 3

Border = tuple[tuple[ServedTensor, ...], tuple[ServedTensor, ...]]


def batched_border(source: onnx.ModelProto, compiled: onnx.ModelProto, artefact: Artefact, request: CompileRequest) -> Border:
    """Inputs and outputs of a model whose tensors all have the batch as dimension 0.

    Args:
        source: Its element types are what clients send and get where the server casts them.
        compiled: Its shapes are static.
        artefact: Has the element types that can be served.
        request: Has the layouts.

    Raises:
        CompileError: a tensor has a type or shape that no request can carry.
        OptionError: see `with_layouts`.
    """
    inputs, outputs = served_tensors(source, compiled, is_batched=True, datatypes=artefact.datatypes)
    return with_layouts(inputs, request), tuple(outputs)


def with_layouts(inputs: list[ServedTensor], request: CompileRequest) -> tuple[ServedTensor, ...]:
    """`inputs` with the layouts of `input_formats`, which has one for each input, in order, or none at all.

    What is no image has no layout. Requests give it one nevertheless, since Adlik loses inputs without; that is a warning here.

    Raises:
        OptionError: there are too many or too few.
    """
    layouts = request.input_formats or (None,) * len(inputs)
    if len(layouts) != len(inputs):
        names = ", ".join(f"'{each.name}'" for each in inputs)
        raise OptionError(f"input_formats: {len(layouts)} formats for {len(inputs)} inputs: {names}; write null for what is no image")
    made = []
    for each, layout in zip(inputs, layouts, strict=True):
        if layout is not None and len(each.dims) != _IMAGE_DIMS:
            logger.warning("input_formats: %s has no effect on input '%s', no image: %s", layout.name.lower(), each.name, list(each.dims))
            layout = None
        made.append(each if layout is None else dataclasses.replace(each, layout=layout.value))
    return tuple(made)
