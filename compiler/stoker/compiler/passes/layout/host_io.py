"""Passes that change inputs and outputs to the form in which the host transfers them."""

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from stoker.compiler.errors import OptionError, PassError
from stoker.compiler.marks import EIGHT_BITS_IO, HOST_CONCAT
from stoker.compiler.passes.edit import static_shape
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.registry import Pass, register

log = logging.getLogger(__name__)

#: Mean and standard deviation per colour of ImageNet's training images, for pixels scaled to 0..1, as used by torchvision's models.
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
        inputs: Names of the images; empty selects all floating-point inputs with the shape of an image.
        mean: One number per colour, for pixels scaled to 0..1.
        std: One number per colour, for pixels scaled to 0..1.
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


_OPTION = "apply_hcsr"
_DTYPES = {
    "fp32": ir.DataType.FLOAT,
    "fp16": ir.DataType.FLOAT16,
    "int32": ir.DataType.INT32,
    "int64": ir.DataType.INT64,
    "int16": ir.DataType.INT16,
    "int8": ir.DataType.INT8,
    "uint32": ir.DataType.UINT32,
    "uint16": ir.DataType.UINT16,
    "uint8": ir.DataType.UINT8,
    "bool": ir.DataType.BOOL,
}
_GROUP = re.compile(r"(?P<dtype>\w+)\s*,\s*\[(?P<shape>[\d,\s]*)\]\s*(?:,\s*(?P<num>\d+))?")


@dataclass(frozen=True, slots=True)
class InputGroup:
    """A group of inputs to concatenate: the first `num` inputs of this dtype and shape in graph order (None: all)."""

    dtype: ir.DataType
    shape: tuple[int, ...]
    num: int | None = None

    @classmethod
    def parse(cls, text: str) -> "InputGroup":
        """Parses `dtype,[d0,d1..][,num]`, such as `fp32,[512,1],50`.

        Raises:
            OptionError: it is not of this form, or the dtype is unknown.
        """
        found = _GROUP.fullmatch(text.strip())
        if found is None:
            raise OptionError(f"{_OPTION}: '{text}' must be DTYPE,[SHAPE][,NUM], such as fp32,[512,1],50")
        if found["dtype"] not in _DTYPES:
            raise OptionError(f"{_OPTION}: dtype '{found['dtype']}' is not one of {', '.join(_DTYPES)}")
        shape = tuple(int(each) for each in found["shape"].split(",") if each.strip())
        num = None if found["num"] is None else int(found["num"])
        if num is not None and num < 2:
            raise OptionError(f"{_OPTION}: '{text}' would join {num} input(s); at least 2 are needed")
        return cls(_DTYPES[found["dtype"]], shape, num)


@register("apply_host_concat_split")
class ApplyHostConcatSplit(Pass):
    """Joins inputs of one dtype and shape into one that the host concatenates and the device splits and reshapes. Exact.

    Every stream costs the host link a latency; one stream of all bytes costs it once. The new input has shape [num, *shape]: the inputs'
    bytes one after another, in graph order. What was joined is recorded in the model's metadata under `stoker.host_concat`, a JSON list of
    {tensor_name, input_tensor_names, shape (of one input), dtype, data_size_bytes (of one input)}, for HostConcatRunner. It stands where
    the first of the joined inputs stood.

    Args:
        groups: `dtype,[shape][,num]` each, such as `fp32,[512,1],50`.
    """

    def __init__(self, groups: Sequence[str] = ()) -> None:
        self._groups = [InputGroup.parse(text) for text in groups]

    def run(self, model: ir.Model) -> bool:
        editor = GraphEditor(model)
        records = [_join(editor, model.graph, group) for group in self._groups]
        if records:
            model.metadata_props[HOST_CONCAT] = json.dumps(records)
        return bool(records)


def _join(editor: GraphEditor, graph: ir.Graph, group: InputGroup) -> dict[str, object]:
    fitting = [
        value
        for value in graph.inputs
        if value.dtype is group.dtype and static_shape(value) == group.shape and value.name not in graph.initializers
    ]
    wanted = len(fitting) if group.num is None else group.num
    if len(fitting) < max(wanted, 2):
        have = ", ".join(f"'{value.name}' ({value.dtype}, {value.shape})" for value in graph.inputs)
        expected = "at least 2" if group.num is None else str(group.num)
        raise PassError(
            f"{_OPTION}: {expected} inputs of {group.dtype} {list(group.shape)} are needed, there are {len(fitting)}; inputs: {have}"
        )
    if len(graph) == 0:
        raise PassError(f"{_OPTION}: the model has no nodes")
    joined, first = fitting[:wanted], graph[0]
    shape = "x".join(str(size) for size in group.shape) or "scalar"
    name = editor.fresh_name(f"host_concat_{group.dtype.name.lower()}_{shape}")
    whole = ir.Value(name=name, type=ir.TensorType(group.dtype), shape=ir.Shape([wanted, *group.shape]))
    graph.inputs.insert(list(graph.inputs).index(joined[0]), whole)
    rows = editor.insert_split(first, whole, [1] * wanted, 0, name=f"{name}/Split", shapes=[[1, *group.shape]] * wanted)
    target = editor.constant(first, np.asarray(group.shape, np.int64), f"{name}/shape")
    names = [str(value.name) for value in joined]
    for value, row in zip(joined, rows, strict=True):
        graph.inputs.remove(value)
        editor.replace(value, editor.insert(first, "Reshape", [row, target], name=f"{name}/{value.name}", like=value))
    log.info("%d inputs of %s %s are joined on the host as '%s'", wanted, group.dtype, list(group.shape), name)
    count = int(np.prod(group.shape, dtype=np.int64))
    return {
        "tensor_name": name,
        "input_tensor_names": names,
        "shape": list(group.shape),
        "dtype": group.dtype.name.lower(),
        "data_size_bytes": count * group.dtype.numpy().itemsize,
    }
