"""Makes the batch dimension of a lowered graph variable, so that the simulated device's host computes only the rows of a request.

The device's program stays static, and its modelled time is that of the whole compiled batch. A padded run computes rows whose outputs are
dropped. The host may omit them if each row is computed independently, and bit for bit as in the padded run; a test at compile time compares
both.
"""

import math
import time
from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from stoker.backends.simulated.numerics import MIN_ROWS, MIN_VARIABLE_BATCH, GraphRunner, NumericsError
from stoker.compiler.check import random_feeds
from stoker.compiler.target import fed_inputs

Array = npt.NDArray[Any]

#: Seconds that the padded run of the test may take. A larger batch is compared with as many rows as run in that time.
LIMIT_S: Final = 5.0
#: Bytes of memory that a run of the test may take, by the compiler's account.
LIMIT_BYTES: Final = 2**30
_DIM: Final = "rows"


def with_variable_rows(
    graph: bytes,
    batch_size: int,
    *,
    row_bytes: int,
    weights: Mapping[str, Array] | None = None,
    streamed: Mapping[str, Array] | None = None,
) -> tuple[bytes, str]:
    """Returns a lowered graph whose dimension 0 is variable in all inputs and outputs.

    Args:
        graph: A serialised lowered model with static shapes. Dimension 0 of every output, and of every input but `streamed`, is the batch.
        batch_size: The size of the batch.
        row_bytes: Memory of a run for each row: inputs, outputs and intermediate values.
        weights: Values of the initialisers that are external data.
        streamed: Values of the inputs that are weights.

    Returns:
        The graph and an empty text. If a run with fewer rows fails or changes a bit of an output: `graph` itself, and the reason.
    """
    if batch_size < MIN_VARIABLE_BATCH:
        return graph, ""
    largest = min(batch_size, LIMIT_BYTES // max(row_bytes, 1))
    if largest < MIN_VARIABLE_BATCH or len(graph) > LIMIT_BYTES:
        return graph, f"a test with fewer rows takes over {LIMIT_BYTES} bytes"
    fixed = streamed or {}
    model = onnx.load_model_from_string(graph)
    given = {*fixed, *(each.name for each in model.graph.initializer)}
    for value in (*model.graph.input, *model.graph.output):
        if value.name not in given and not value.type.tensor_type.shape.dim:
            return graph, f"'{value.name}' has no batch dimension"
    _vary(model.graph, batch_size, given)
    content = model.SerializeToString(deterministic=True)
    for value in fed_inputs(model):
        if value.name not in fixed:
            value.type.tensor_type.shape.dim[0].dim_value = largest
    try:
        runner = GraphRunner(content, weights=weights)
        feeds = {name: array for name, array in random_feeds(model).items() if name not in fixed}
        reason = _difference(runner, feeds, fixed, largest)
    except NumericsError as error:
        reason = f"it does not run with fewer rows: {error}"
    return (graph, reason) if reason else (content, "")


def _vary(graph: onnx.GraphProto, batch_size: int, given: Collection[str]) -> None:
    """Makes dimension 0 of inputs and outputs variable, and computes dimension 0 of a Reshape's result if it is a multiple of the batch.

    `given`: initialisers, and inputs that are weights.
    """
    constants = {each.name: each for each in graph.initializer if each.data_location != onnx.TensorProto.EXTERNAL}
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.value_info, *graph.output)
    }
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
    for value in (*graph.input, *graph.output):
        if value.name not in given:
            value.type.tensor_type.shape.dim[0].dim_param = _DIM
    graph.ClearField("value_info")
    for node in graph.node:
        if node.op_type != "Reshape" or node.input[0] in given or node.input[1] not in constants:
            continue
        shape = shapes.get(node.output[0]) or [int(size) for size in numpy_helper.to_array(constants[node.input[1]])]
        if shape and min(shape) > 0 and shape[0] % batch_size == 0:
            name = f"{node.output[0]}/{_DIM}"
            graph.initializer.append(numpy_helper.from_array(np.array([-1, *shape[1:]], np.int64), name))
            node.input[1] = name


def _difference(runner: GraphRunner, feeds: Mapping[str, Array], fixed: Mapping[str, Array], largest: int) -> str:
    """Compares runs of a few rows with a run of the same rows and zeros. Returns the difference; empty if there is none.

    The outputs of all rows of zeros must have the same bits too.
    """
    names = list(runner.outputs)

    def run(rows: int, size: int) -> dict[str, Array]:
        padded = {name: np.zeros((size, *array.shape[1:]), array.dtype) for name, array in feeds.items()}
        for name, array in feeds.items():
            padded[name][:rows] = array[:rows]
        return runner.run({**padded, **fixed}, names)

    real, tried = MIN_ROWS + 1, MIN_ROWS + 2
    few = run(MIN_ROWS, MIN_ROWS)
    began = time.monotonic()
    several = run(real, tried)
    row_s = (time.monotonic() - began) / tried
    size = min(largest, max(tried, math.floor(LIMIT_S / max(row_s, 1e-9))))
    whole = run(real, size)
    for name, padded in whole.items():
        for rows, found in ((MIN_ROWS, few[name]), (tried, several[name])):
            if len(found) != rows or len(padded) != size:
                return f"output '{name}' has not one row for each row of the inputs"
            if found.tobytes() != padded[:rows].tobytes():
                return f"output '{name}' of a row depends on the number of rows"
        if any(row.tobytes() != padded[real].tobytes() for row in padded[tried:]):
            return f"output '{name}' of a row depends on its position"
    return ""
