"""The batch of a converted model: its size, and the model made to take fewer rows too.

A converted model has one batch size, which all other devices want. On a CPU that would compute a lone request's padding, so the dimension
is opened again where the model means it as a batch; that it does is tried, not assumed.
"""

import logging

import onnx

from compiler.convert.free_batch import with_free_batch
from compiler.errors import ShapeError

_logger = logging.getLogger(__name__)


def batch_of(model: onnx.ModelProto) -> tuple[int, onnx.ModelProto]:
    """max_batch_size, and the model that takes batches up to it.

    Args:
        model: Of static shapes.

    Returns:
        The size that dimension 0 of all inputs and outputs has, and `model` with that dimension open. 0 and `model` itself where there is
        no such size, or the model computes something else with other sizes, which is warned of.
    """
    given = {each.name for each in model.graph.initializer}
    values = [value for value in model.graph.input if value.name not in given] + list(model.graph.output)
    sizes = {dims[0].dim_value if (dims := value.type.tensor_type.shape.dim) else 0 for value in values}
    size = sizes.pop() if len(sizes) == 1 else 0
    if not size:
        return 0, model
    try:
        # One more than it has: any other size will do, to have dimension 0 opened and tried.
        return size, with_free_batch(model, (size + 1,))
    except ShapeError as error:
        _logger.warning("the model is served without batching, with the shapes it has: %s", error)
        return 0, model
