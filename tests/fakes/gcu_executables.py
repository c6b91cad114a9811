"""Small GCU executables, made without the compiler."""

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto, helper

from stoker.backends.api.tensor import DataType
from stoker.backends.gcu.program import CompiledBatch, GcuExecutable, GcuTensor

SCALE = "scale"


def scaled(
    batches: Sequence[int] = (1, 4),
    *,
    name: str = "scaled",
    width: int = 3,
    scale: Sequence[float] | None = None,
    run_s: float = 1e-3,
    workspace_bytes: int = 4096,
    card: str = "i20",
    mixes_batch: bool = False,
    has_variable_rows: bool = False,
) -> GcuExecutable:
    """`y` = `x` * scale (1, 2, 3... by default), `n` = index of the largest x; float32 and int64.

    With `mixes_batch`, y also has the sum of all rows of the batch, padding too. With `has_variable_rows`, the graphs compute any number of
    rows. A run of a batch of b takes b x `run_s` on one cluster,
    and half of that on two or more.
    """
    weight = np.asarray(scale if scale is not None else np.arange(1, width + 1), np.float32)
    compiled = [
        CompiledBatch(
            batch_size=size,
            onnx=_graph(None if has_variable_rows else size, width, mixes_batch),
            workspace_bytes=workspace_bytes,
            flops=size * width,
            hbm_traffic_bytes=size * width * 8,
            run_s=(size * run_s, size * run_s / 2),
        )
        for size in sorted(batches)
    ]
    return GcuExecutable(
        name=name,
        card=card,
        precision="fp32",
        inputs=(GcuTensor("x", DataType.FP32, (width,)),),
        outputs=(GcuTensor("y", DataType.FP32, (width,)), GcuTensor("n", DataType.INT64, ())),
        batches=tuple(compiled),
        weights={SCALE: weight},
    )


def _graph(size: int | None, width: int, mixes_batch: bool) -> bytes:
    weight = helper.make_tensor(SCALE, TensorProto.FLOAT, [width], [0.0] * width)
    weight.ClearField("float_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, text in (("location", "weights"), ("offset", "0"), ("length", str(width * 4))):
        entry = weight.external_data.add()
        entry.key, entry.value = key, text
    nodes = [helper.make_node("Mul", ["x", SCALE], ["product"]), helper.make_node("ArgMax", ["x"], ["n"], axis=1, keepdims=0)]
    if mixes_batch:
        axes = helper.make_node("Constant", [], ["axes"], value_ints=[0])
        nodes += [axes, helper.make_node("ReduceSum", ["x", "axes"], ["sum"]), helper.make_node("Add", ["product", "sum"], ["y"])]
    else:
        nodes.append(helper.make_node("Identity", ["product"], ["y"]))
    made = helper.make_model(
        helper.make_graph(
            nodes,
            "scaled",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, (size, width))],
            [
                helper.make_tensor_value_info("y", TensorProto.FLOAT, (size, width)),
                helper.make_tensor_value_info("n", TensorProto.INT64, (size,)),
            ],
            [weight],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
    )
    made.ir_version = 10
    return made.SerializeToString()
