"""PopEF files for tests of serving, built by hand from small programs: no compiler is involved."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from stoker.backends.api.tensor import DataType
from stoker.backends.ipu.popef.served_types import SERVED
from tests.fakes.ipu_programs import Part, write_popef

#: What a PopEF file can carry and a client can send.
DATATYPES = frozenset(SERVED.values())


def popef(*parts: Part, **options: Any) -> bytes:
    """The file that `write_popef` writes."""
    with tempfile.TemporaryDirectory() as folder:
        return write_popef(Path(folder) / "executable.popef", *parts, **options).read_bytes()


def echo(shape: tuple[int, ...], datatype: DataType = DataType.FP32) -> Part:
    """`y` = `x`."""
    dtype = datatype.numpy.type
    return Part(
        nodes=[helper.make_node("Identity", ["x"], ["y"])], inputs={"x": shape}, outputs={"y": shape}, dtypes={"x": dtype, "y": dtype}
    )


def pair(shape: tuple[int, ...]) -> Part:
    """`p` = `a`, `q` = `b`."""
    nodes = [helper.make_node("Identity", [source], [output]) for source, output in (("a", "p"), ("b", "q"))]
    return Part(nodes=nodes, inputs={"a": shape, "b": shape}, outputs={"p": shape, "q": shape})


def picking(shape: tuple[int, ...]) -> Part:
    """INT64 (S32 on the device) `y` = `x`, gathered from a row of 0 to 12: 13 is out of bounds, and fails at run time."""
    row = helper.make_tensor("row", TensorProto.INT32, [13], list(range(13)))
    return Part(
        nodes=[helper.make_node("Gather", ["row", "x"], ["y"])],
        inputs={"x": shape},
        outputs={"y": shape},
        dtypes={"x": np.int32, "y": np.int32},
        initializers=[row],
    )


def halving(shape: tuple[int, ...], factor: float = 0.5, *, x: str = "x", y: str = "y") -> Part:
    """F16 `y` = `x` * `factor`."""
    nodes = [helper.make_node("Mul", [x, "factor"], [y])]
    initializer = helper.make_tensor("factor", TensorProto.FLOAT16, [], [factor])
    dtypes = {x: np.float16, y: np.float16}
    return Part(nodes=nodes, inputs={x: shape}, outputs={y: shape}, dtypes=dtypes, initializers=[initializer])
