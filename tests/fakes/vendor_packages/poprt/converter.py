"""See `poprt`."""

import onnx


class Converter:
    """Fixes the shapes, and does no more."""

    def __init__(self, *, input_shape: dict[str, list[int]] | None = None, precision: str = "fp32", **rest: object) -> None:
        self._shapes = input_shape or {}

    def convert(self, model: onnx.ModelProto) -> onnx.ModelProto:
        for value in model.graph.input:
            for dimension, size in zip(value.type.tensor_type.shape.dim, self._shapes.get(value.name, ()), strict=False):
                dimension.Clear()
                dimension.dim_value = size
        return model
