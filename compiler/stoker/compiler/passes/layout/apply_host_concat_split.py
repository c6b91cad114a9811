"""`apply_host_concat_split`: many small inputs travel to the device as one."""

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from stoker.compiler.errors import OptionError, PassError
from stoker.compiler.marks import HOST_CONCAT
from stoker.compiler.passes.edit import static_shape
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register

log = logging.getLogger(__name__)

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
    """Inputs to be joined: of this dtype and shape, the first `num` of them in graph order (all if None)."""

    dtype: ir.DataType
    shape: tuple[int, ...]
    num: int | None = None

    @classmethod
    def parse(cls, text: str) -> "InputGroup":
        """From `dtype,[d0,d1..][,num]`, such as `fp32,[512,1],50`.

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
