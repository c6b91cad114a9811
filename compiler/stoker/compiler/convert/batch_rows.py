"""Whether the rows of a batch are computed each by itself, so that a server may join requests and fill up a batch with padding.

A model that computes across the batch (a mean over dimension 0, a table of one row for each position) returns another result for each
set of requests that it is served with. That cannot be seen in the graph for sure, so it is tried: the rows are run once more in other
places and beside another row, and, where the batch is open, alone.
"""

import logging

import numpy as np
import onnx

from stoker.compiler.check import random_feeds
from stoker.compiler.convert.free_batch import runner_of
from stoker.compiler.custom_libraries import using_libraries
from stoker.compiler.precision.agreement import agree, random_outputs
from stoker.compiler.target import SourceModel

logger = logging.getLogger(__name__)

#: Rows that are tried of a model whose batch is open.
_ROWS = 2


def dependence_of_rows(source: SourceModel) -> str:
    """Why the rows of a batch of `source` cannot be computed apart; empty where they can, or where there is but one.

    The model before conversion is tried where it is there, runs, and leaves the batch open, with a few rows; else the converted one, with
    as many as it has. What ONNX Runtime does not run is not tried, which is logged; random outputs are not compared.
    """
    open_batch = _with_rows(source.source, source.model, _ROWS) if source.source is not None else None
    models = ([(open_batch, True)] if open_batch is not None else []) + [(source.model, False)]
    failure = ""
    with using_libraries(source.custom_libraries):
        for model, is_open in models:
            if not is_open and _rows(model) < 2:
                return ""
            try:
                return _dependence(model, is_open=is_open)
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
    """The size that dimension 0 of all inputs and outputs has; 0 where it is not one."""
    sizes = {dims[0].dim_value if (dims := value.type.tensor_type.shape.dim) else 0 for value in (*_fed(model), *model.graph.output)}
    return sizes.pop() if len(sizes) == 1 else 0


def _fed(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    given = {each.name for each in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in given]


def _with_rows(source: onnx.ModelProto, converted: onnx.ModelProto, rows: int) -> onnx.ModelProto | None:
    """A copy of `source` with the input sizes of `converted`, but `rows` in dimension 0; None where that is not open in every input."""
    sizes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in _fed(converted)}
    made = onnx.ModelProto()
    made.CopyFrom(source)
    inputs = _fed(made)
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
    """As `sized`, with dimension 0 of the inputs open again."""
    made = onnx.ModelProto()
    made.CopyFrom(sized)
    for value in _fed(made):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    return made
