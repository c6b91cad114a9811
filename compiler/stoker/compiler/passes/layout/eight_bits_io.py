"""`eight_bits_io`: images come in as bytes, and are normalised on the device."""

import json
import logging
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from stoker.compiler.errors import OptionError, PassError
from stoker.compiler.marks import EIGHT_BITS_IO
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register

log = logging.getLogger(__name__)

#: Of the three colours of ImageNet's training images, of pixels scaled to 0..1: what torchvision's models are trained with.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


@register("eight_bits_io")
class EightBitsIO(Pass):
    """Makes image inputs UINT8 pixels, which the device normalises: (pixel / 255 - mean) / std, a quarter of the bytes over the host link.

    The converted model fed with pixels gives what the source model gives for those pixels normalised; tolerance is rounding, in the
    precision of the input it replaces (FP32 or FP16). Images are inputs of rank 4 with a colour dimension of the length of `mean`, second
    (NCHW) or last (NHWC). Input names stay. Where the choice was made is recorded in the model's metadata.

    Args:
        inputs: Names of the images; all floating-point inputs that look like one if empty.
        mean: One number a colour, of pixels scaled to 0..1.
        std: One number a colour, of pixels scaled to 0..1.
    """

    def __init__(self, inputs: Sequence[str] = (), mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD) -> None:
        if len(mean) != len(std) or not mean:
            raise OptionError(f"eight_bits_io: mean and std need one number for each colour, not {len(mean)} and {len(std)}")
        if any(not each > 0 for each in std):
            raise OptionError(f"eight_bits_io: std must be positive, not {list(std)}")
        self._inputs, self._mean, self._std = tuple(inputs), tuple(mean), tuple(std)

    def run(self, model: ir.Model) -> bool:
        editor = GraphEditor(model)
        images = self._images(model.graph)
        for image, axis in images:
            self._normalise(editor, model.graph, image, axis)
        marks = {image.name: {"mean": self._mean, "std": self._std, "axis": axis} for image, axis in images}
        model.metadata_props[EIGHT_BITS_IO] = json.dumps(marks)
        log.info("taken as UINT8 and normalised on the device: %s", ", ".join(str(image.name) for image, _ in images))
        return True

    def _images(self, graph: ir.Graph) -> list[tuple[ir.Value, int]]:
        by_name = {value.name: value for value in graph.inputs if value.name not in graph.initializers}
        for name in self._inputs:
            if name not in by_name:
                raise PassError(f"eight_bits_io: the model has no input '{name}'; it has {', '.join(str(each) for each in by_name)}")
        chosen = [by_name[name] for name in self._inputs] or list(by_name.values())
        found = [(value, axis) for value in chosen if (axis := self._colour_axis(value)) is not None]
        if not found or (self._inputs and len(found) < len(chosen)):
            seen = ", ".join(f"'{value.name}' ({value.dtype}, {value.shape})" for value in chosen)
            raise PassError(
                f"eight_bits_io: expected floating-point images with {len(self._mean)} colours, such as [N, 3, H, W]; found {seen}"
            )
        return found

    def _colour_axis(self, value: ir.Value) -> int | None:
        if value.dtype not in _FLOATS or value.shape is None or len(value.shape) != 4:
            return None
        return next((axis for axis in (1, 3) if value.shape[axis] == len(self._mean)), None)

    def _normalise(self, editor: GraphEditor, graph: ir.Graph, image: ir.Value, axis: int) -> None:
        if not image.uses():
            raise PassError(f"eight_bits_io: no node reads input '{image.name}'")
        first = graph[0]
        dtype = image.dtype
        assert dtype is not None
        shape = [1, 1, 1, 1]
        shape[axis] = len(self._mean)
        std = np.asarray(self._std)
        scale, offset = 1.0 / (255.0 * std), -np.asarray(self._mean) / std
        readers = list(image.uses())
        cast = editor.insert(first, "Cast", [image], attributes={"to": dtype.value}, name=f"{image.name}/to_float", like=image)
        factor = editor.constant(first, scale.reshape(shape).astype(dtype.numpy()), f"{image.name}/scale")
        shift = editor.constant(first, offset.reshape(shape).astype(dtype.numpy()), f"{image.name}/offset")
        scaled = editor.insert(first, "Mul", [cast, factor], name=f"{image.name}/scaled", like=image)
        result = editor.insert(first, "Add", [scaled, shift], name=f"{image.name}/normalised", like=image)
        for use in readers:
            use.node.replace_input_with(use.idx, result)
        for index, output in enumerate(graph.outputs):
            if output is image:
                graph.outputs[index] = result
        image.type = ir.TensorType(ir.DataType.UINT8)
