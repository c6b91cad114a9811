"""The batch of a converted model: its size, and the model made to take fewer rows too.

Where the source leaves dimension 0 of all inputs open, that is the batch; where all have one size there, the dimension is opened. That rows
do not depend on each other is tried, not assumed: with two batches by themselves in the source, and both together in what was made of it.
"""

import logging
from typing import Final

import numpy as np
import onnx

from stoker.backends.api.cpu import usable_cores
from stoker.backends.cpu.runtime import run_of
from stoker.backends.cpu.samples import fed_inputs, random_data
from stoker.compiler import target
from stoker.compiler.convert.free_batch import with_free_batch
from stoker.compiler.errors import CompileError, ShapeError
from stoker.compiler.precision.agreement import agree, random_outputs
from stoker.compiler.target import SourceModel

_logger = logging.getLogger(__name__)

#: max_batch_size of a model with an open batch, unless the options name another; as in servers without a configuration.
DEFAULT_BATCH: Final = 32
#: Rows of the two batches that are tried.
_TRIED_ROWS: Final = (2, 3)


def batch_of(source: SourceModel) -> tuple[int, onnx.ModelProto]:
    """max_batch_size, and the model that takes batches up to it.

    Args:
        source: Its `model` converted; dimensions may be open.

    Returns:
        The rows of a batch as they were asked for, or the size that dimension 0 of all inputs and outputs has, and the model with that
        dimension open. 0 and `source.model` itself where there is no batch, or the model computes something else for more rows at once,
        which is warned of.

    Raises:
        CompileError: ONNX Runtime refuses the source.
    """
    model = source.model
    values = [*target.fed_inputs(model), *model.graph.output]
    shapes = [list(value.type.tensor_type.shape.dim) for value in values]
    if not all(shapes):
        return 0, model
    sizes = {shape[0].dim_value for shape in shapes}
    try:
        if sizes == {0}:
            _check_rows(source)
            return source.batch_size or DEFAULT_BATCH, model
        if len(sizes) == 1:
            size = sizes.pop()
            # One more than it has: any other size will do, to have dimension 0 opened and tried.
            return size, with_free_batch(model, (size + 1,))
        if 0 in sizes and len(sizes) == 2 and all(not shape[0].dim_value for shape in shapes[: -len(model.graph.output)]):
            raise ShapeError("its inputs leave dimension 0 open, and an output has a fixed one")
    except ShapeError as error:
        _logger.warning("the model is served without batching, with the shapes it has: %s", error)
    return 0, model


def _check_rows(source: SourceModel) -> None:
    """Raises:
    ShapeError: rows depend on each other, or the model does not run with one of the numbers of rows tried.
    CompileError: ONNX Runtime refuses the source.
    """
    names = [value.name for value in source.model.graph.output]
    threads = usable_cores()
    alone = run_of(source.source or source.model, names, threads=threads)
    together = run_of(source.model, names, threads=threads, what="the converted model")
    inputs = fed_inputs(source.model)
    feeds = []
    for rows in _TRIED_ROWS:
        try:
            feeds += random_data(inputs, rows, alone, count=1, seed=rows)
        except CompileError as error:
            raise ShapeError(f"it does not run with {rows} rows ({error})") from error
    wanted = [alone(each) for each in feeds]
    try:
        found = together({name: np.concatenate([each[name] for each in feeds]) for name in feeds[0]})
    except CompileError as error:
        raise ShapeError(f"it does not run with {sum(_TRIED_ROWS)} rows ({error})") from error
    random = random_outputs(source.model)
    for name in names:
        parts = [each[name] for each in wanted]
        if any(part.ndim == 0 or len(part) != rows for part, rows in zip(parts, _TRIED_ROWS, strict=True)):
            raise ShapeError(f"output '{name}' has not a row for each row of the inputs")
        if name not in random and not agree(found[name], np.concatenate(parts)):
            raise ShapeError(f"output '{name}' is another for the same inputs where more rows are computed at once")
