"""Models that were exported for one batch size, made to take any: so that they can be compiled for several.

Dimension 0 of every input and output becomes variable, and the targets of Reshape that say the old size follow what they are given. A model
may have its batch built in elsewhere too; so the new one is run with two batches at once, beside two runs of the old one, and refused where
it computes anything else.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import numpy_helper

from stoker.compiler.check import random_feeds
from stoker.compiler.convert.opset import convert_to_internal
from stoker.compiler.custom_libraries import register_libraries
from stoker.compiler.errors import ShapeError
from stoker.compiler.precision.agreement import agree
from stoker.compiler.precision.number_types import numpy_feeds, with_numpy_types

Array = NDArray[Any]

_FREE_DIM = "batch"
_SHAPE_READERS = frozenset({"Shape", "Size"})
_HINT = "export it with a variable batch, or compile it for that size only"


def with_free_batch(model: onnx.ModelProto, batch_sizes: Sequence[int]) -> onnx.ModelProto:
    """`model` itself where its batch is variable or no other size is asked for; a copy with a variable batch otherwise.

    Raises:
        ShapeError: another size is asked for, and the model computes something else, or nothing, at other sizes than its own.
        CompileError: the model is invalid.
    """
    old = _fixed_batch(model)
    if old is None or all(size == old for size in batch_sizes):
        return model
    fixed = convert_to_internal(model)
    freed = onnx.ModelProto()
    freed.CopyFrom(fixed)
    _free(freed.graph, old)
    _compare(fixed, freed, old)
    return freed


def _fixed_batch(model: onnx.ModelProto) -> int | None:
    """The size that dimension 0 has in all inputs; None where it is variable, or not the same."""
    given = {each.name for each in model.graph.initializer}
    shapes = [value.type.tensor_type.shape.dim for value in model.graph.input if value.name not in given]
    sizes = {shape[0].dim_value if len(shape) else 0 for shape in shapes}
    return sizes.pop() if len(sizes) == 1 and 0 not in sizes else None


def _free(graph: onnx.GraphProto, old: int) -> None:
    given = {each.name for each in graph.initializer}
    varying = {value.name for value in graph.input if value.name not in given}
    for value in (*graph.input, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.name not in given and len(dims) and dims[0].dim_value == old:
            dims[0].dim_param = _FREE_DIM
    constants = {each.name: each for each in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
    for node in graph.node:
        if node.op_type in _SHAPE_READERS or not any(name in varying for name in node.input):
            continue
        varying.update(node.output)
        if node.op_type == "Reshape" and node.input[0] in varying and node.input[1] in constants:
            _follow(graph, node, numpy_helper.to_array(constants[node.input[1]]), old)
    graph.ClearField("value_info")


def _follow(graph: onnx.GraphProto, node: onnx.NodeProto, target: NDArray[np.int64], old: int) -> None:
    """Lets a Reshape whose target begins with the batch take what is there: all that is left, or dimension 0 of its input."""
    if not target.size or target[0] != old:
        return
    sizes = np.array(target)
    sizes[0] = 0 if -1 in target else -1
    name = f"{node.input[1]}/{_FREE_DIM}/{node.output[0]}"
    graph.initializer.append(numpy_helper.from_array(sizes, name))
    node.input[1] = name


def _compare(fixed: onnx.ModelProto, freed: onnx.ModelProto, old: int) -> None:
    """Runs two different batches by themselves and together."""
    feeds = [random_feeds(fixed, seed) for seed in (0, 1)]
    try:
        alone = [run_model(fixed, each) for each in feeds]
        together = run_model(freed, {name: np.concatenate([each[name] for each in feeds]) for name in feeds[0]})
    except Exception as error:  # onnxruntime's errors share no class of their own
        reason = " ".join(str(error).split())
        raise ShapeError(f"the model is made for batch {old} and does not run with {2 * old} ({reason}): {_HINT}") from error
    for name, rows in together.items():
        wanted = [each[name] for each in alone]
        if not wanted[0].ndim or not agree(rows, np.concatenate(wanted)):
            raise ShapeError(f"the model is made for batch {old}: with {2 * old}, output '{name}' is another for the same inputs: {_HINT}")


def run_model(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs by name, on ONNX Runtime. Raises what ONNX Runtime raises."""
    return runner_of(model)(feeds)


def runner_of(model: onnx.ModelProto) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """Gives the outputs of `model` by name, on ONNX Runtime. Both raise what ONNX Runtime raises."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    register_libraries(options)
    content = with_numpy_types(model).SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    names = [each.name for each in session.get_outputs()]

    def run(feeds: Mapping[str, Array]) -> dict[str, Array]:
        return {name: np.asarray(value) for name, value in zip(names, session.run(names, numpy_feeds(feeds)), strict=True)}

    return run
