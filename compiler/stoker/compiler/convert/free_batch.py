"""Makes the batch dimension of a model variable, and checks whether the rows of a batch are independent.

A model exported for one batch size can then be compiled for several. Dimension 0 of every input and output becomes variable, and Reshape
targets that contain the old size follow their input. Since a model may depend on its batch size elsewhere, the new model runs with two
batches at once and is compared with two runs of the old one; if the results differ, the model is rejected.

A server may join requests and pad a batch only if each row is computed independently. A model that computes across the batch (a mean over
dimension 0, a table with one row for each position) returns results that depend on the other requests. The graph does not show this
reliably, so a test runs the rows again in other positions, beside another row, and alone if the batch is variable.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import numpy_helper

from stoker.compiler.check import random_feeds
from stoker.compiler.convert.opset import convert_to_internal
from stoker.compiler.custom_libraries import register_libraries, using_libraries
from stoker.compiler.errors import ShapeError
from stoker.compiler.precision.drift import agree, random_outputs
from stoker.compiler.precision.number_types import numpy_feeds, with_numpy_types
from stoker.compiler.target import SourceModel, fed_inputs

Array = NDArray[Any]

_FREE_DIM = "batch"
_SHAPE_READERS = frozenset({"Shape", "Size"})
_HINT = "export it with a variable batch, or compile it for that size only"


def with_free_batch(model: onnx.ModelProto, batch_sizes: Sequence[int]) -> onnx.ModelProto:
    """Returns `model` if its batch is variable or no other size is requested; otherwise a copy with a variable batch.

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
    """Returns the size of dimension 0 in all inputs; None if it is variable or differs between inputs."""
    shapes = [value.type.tensor_type.shape.dim for value in fed_inputs(model)]
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
    """Changes a Reshape whose target begins with the batch size, so that it takes the size from its input."""
    if not target.size or target[0] != old:
        return
    sizes = np.array(target)
    sizes[0] = 0 if -1 in target else -1
    name = f"{node.input[1]}/{_FREE_DIM}/{node.output[0]}"
    graph.initializer.append(numpy_helper.from_array(sizes, name))
    node.input[1] = name


def _compare(fixed: onnx.ModelProto, freed: onnx.ModelProto, old: int) -> None:
    """Runs two different batches separately and together, and compares the results."""
    feeds = [random_feeds(fixed, seed) for seed in (0, 1)]
    try:
        alone = [run_model(fixed, each) for each in feeds]
        together = run_model(freed, {name: np.concatenate([each[name] for each in feeds]) for name in feeds[0]})
    except Exception as error:  # the exceptions of ONNX Runtime have no common base class
        reason = " ".join(str(error).split())
        raise ShapeError(f"the model is made for batch {old} and does not run with {2 * old} ({reason}): {_HINT}") from error
    for name, rows in together.items():
        wanted = [each[name] for each in alone]
        if not wanted[0].ndim or not agree(rows, np.concatenate(wanted)):
            raise ShapeError(f"the model is made for batch {old}: with {2 * old}, output '{name}' is another for the same inputs: {_HINT}")


def run_model(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the outputs by name, computed by ONNX Runtime. ONNX Runtime's exceptions pass through."""
    return runner_of(model)(feeds)


def runner_of(model: onnx.ModelProto) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """Returns a function that computes the outputs of `model` by name with ONNX Runtime. Both raise ONNX Runtime's exceptions."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    register_libraries(options)
    content = with_numpy_types(model).SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    names = [each.name for each in session.get_outputs()]

    def run(feeds: Mapping[str, Array]) -> dict[str, Array]:
        return {name: np.asarray(value) for name, value in zip(names, session.run(names, numpy_feeds(feeds)), strict=True)}

    return run


logger = logging.getLogger(__name__)

#: Numbers of rows to test if the model's batch is variable.
_ROWS = (2, 5)


def dependence_of_rows(source: SourceModel) -> str:
    """Returns why the rows of a batch of `source` depend on each other; empty if they do not, or if there is one row.

    The test uses batches of a few rows of the source model, if it is available, runs, and has a variable batch; otherwise the converted
    model with all its rows. A model that ONNX Runtime cannot run is not tested, and this is logged. Random outputs are not compared.
    """
    opened = [with_rows(source.source, source.model, rows) for rows in _ROWS] if source.source is not None else []
    open_batches = [model for model in opened if model is not None]
    failure = ""
    with using_libraries(source.custom_libraries):
        for models, is_open in ((open_batches, True), ([source.model], False)):
            if not models:
                continue
            if not is_open and _rows(source.model) < 2:
                return ""
            try:
                return next((reason for model in models if (reason := _dependence(model, is_open=is_open))), "")
            except Exception as error:  # noqa: BLE001 - onnxruntime's errors share no class of their own
                failure = " ".join(str(error).split())
    logger.warning("%s: whether the rows of a batch depend on each other was not tried: %s", source.name, failure)
    return ""


def _dependence(model: onnx.ModelProto, *, is_open: bool) -> str:
    given, other = (random_feeds(model, seed) for seed in (0, 1))
    run = runner_of(_freed(model) if is_open else model)
    whole = run(given)
    moved = run({name: np.concatenate([other[name][:1], array[:-1]]) for name, array in given.items()})
    alone = run({name: array[:1] for name, array in given.items()}) if is_open else {}
    rows = len(next(iter(given.values())))
    random = random_outputs(model)
    for name, wanted in whole.items():
        if not wanted.ndim or len(wanted) != rows or (is_open and len(alone[name]) != 1):
            return f"output '{name}' has not one row for each row of the inputs"
        if name in random or (agree(moved[name][1:], wanted[:-1]) and (not is_open or agree(alone[name], wanted[:1]))):
            continue
        return f"output '{name}' of a row depends on the other rows of the batch, or on its place among them"
    return ""


def _rows(model: onnx.ModelProto) -> int:
    """Returns the size of dimension 0, if all inputs and outputs agree on it; otherwise 0."""
    sizes = {dims[0].dim_value if (dims := value.type.tensor_type.shape.dim) else 0 for value in (*fed_inputs(model), *model.graph.output)}
    return sizes.pop() if len(sizes) == 1 else 0


def with_rows(source: onnx.ModelProto, converted: onnx.ModelProto, rows: int) -> onnx.ModelProto | None:
    """Returns a copy of `source` with the input sizes of `converted` and `rows` in dimension 0; None if an input fixes dimension 0."""
    sizes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in fed_inputs(converted)}
    made = onnx.ModelProto()
    made.CopyFrom(source)
    inputs = fed_inputs(made)
    if {value.name for value in inputs} != sizes.keys():
        return None
    for value in inputs:
        dims, wanted = value.type.tensor_type.shape.dim, sizes[value.name]
        if not len(dims) or len(dims) != len(wanted) or dims[0].HasField("dim_value"):
            return None
        for dim, size in zip(dims, [rows, *wanted[1:]], strict=True):
            dim.dim_value = size
    return made


def _freed(sized: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a copy of `sized` in which dimension 0 of the inputs is variable."""
    made = onnx.ModelProto()
    made.CopyFrom(sized)
    for value in fed_inputs(made):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    return made
