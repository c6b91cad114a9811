"""Tensors that no range of eight bits holds, since they are infinite or NaN for some sample: masks of attention, and what reads them."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from stoker.backends.cpu.int8_operators import Selection, not_finite_constants, require_some
from stoker.backends.onnx_files.runtime import ORT_ERRORS, public_text
from stoker.compiler.errors import CompileError

logger = logging.getLogger(__name__)

Batches = Sequence[Mapping[str, NDArray[Any]]]
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
#: Nodes that are listed in one warning.
_LISTED = 5


def without_infinities(model: onnx.ModelProto, chosen: Selection, batches: Batches) -> tuple[Selection, set[str]]:
    """`chosen` without the nodes that read or write a tensor that is infinite or NaN for a sample, and the names of these tensors.

    Args:
        model: In FP32, its nodes named.
        chosen: What is to be quantised.
        batches: The samples; none: only constants are looked at.

    Raises:
        CompileError: the model does not run, or nothing is left to be quantised.
    """
    tensors = not_finite_constants(model.graph) | _not_finite(model, chosen, batches)
    nodes = [node for node in model.graph.node if node.op_type in chosen.op_types and tensors & {*node.input, *node.output}]
    left = [node for node in nodes if node.name not in chosen.excluded]
    if left:
        shown = ", ".join(f"'{node.name}' ({node.op_type})" for node in left[:_LISTED])
        more = f" and {len(left) - _LISTED} more" if len(left) > _LISTED else ""
        text = f"{len(left)} node(s) stay fp32, since a tensor that they read or write holds infinity or NaN: {shown}{more}"
        logger.warning("%s", text)
        chosen = replace(chosen, excluded=(*chosen.excluded, *(node.name for node in left)))
        require_some(model, chosen, (text,))
    return chosen, tensors


def check_scales(source: onnx.ModelProto, quantised: onnx.ModelProto) -> None:
    """Raises:
    CompileError: the quantiser made a scale, or another constant, that is not finite, or a scale that is not above zero.
    """
    known = {each.name for each in source.graph.initializer}
    made = {each.name: each for each in quantised.graph.initializer if each.name not in known}
    scales = {
        node.input[1] for node in quantised.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear") and len(node.input) > 1
    }
    for name, each in made.items():
        if each.data_type not in _FLOATS:
            continue
        array = numpy_helper.to_array(each)
        if not np.all(np.isfinite(array)) or (name in scales and not np.all(array > 0)):
            raise CompileError(
                f"the quantiser made '{name}' with a value that is no scale ({array.reshape(-1)[:3].tolist()}); nothing is written"
            )


def _not_finite(model: onnx.ModelProto, chosen: Selection, batches: Batches) -> set[str]:
    """Of the tensors of floats that the chosen nodes read or write: 0 times such a value is NaN, and so is the sum of all of them."""
    probe = onnx.shape_inference.infer_shapes(model)
    constants = {each.name for each in model.graph.initializer}
    kinds = {
        each.name: each.type.tensor_type.elem_type
        for each in (*probe.graph.value_info, *probe.graph.input, *probe.graph.output)
        if each.name not in constants
    }
    names = [name for node in model.graph.node if node.op_type in chosen.op_types for name in (*node.input, *node.output)]
    watched = [name for name in dict.fromkeys(names) if kinds.get(name) in _FLOATS]
    if not watched or not batches:
        return set()
    del probe.graph.output[:]
    for kind in {kinds[name] for name in watched}:
        zero = np.zeros((), helper.tensor_dtype_to_np_dtype(kind))
        probe.graph.initializer.append(numpy_helper.from_array(zero, f"/finite/zero/{kind}"))
    for at, name in enumerate(watched):
        product, total = f"/finite/{at}/product", f"/finite/{at}"
        probe.graph.node.append(helper.make_node("Mul", [name, f"/finite/zero/{kinds[name]}"], [product]))
        probe.graph.node.append(helper.make_node("ReduceSum", [product], [total], keepdims=0))
        probe.graph.output.append(helper.make_tensor_value_info(total, kinds[name], []))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    found: set[str] = set()
    try:
        session = ort.InferenceSession(probe.SerializeToString(), options, providers=["CPUExecutionProvider"])
        for batch in batches:
            sums = session.run(None, dict(batch))
            found |= {name for name, each in zip(watched, sums, strict=True) if not np.isfinite(each)}
    except ORT_ERRORS as error:
        raise CompileError(f"the model does not run over the samples: {public_text(error)}") from error
    return found
