"""The small models that are timed: launches, products, convolutions, element-wise operators, movement, reductions and host copies.

Each kernel is wide inside and narrow at its borders, so that its time is not that of the copies between host and device. Only the cases of
kind `copy` are the opposite; they are reported, and not fitted.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx

from stoker.cli.device_check.case import Array, Case, Step, fed, model_of, shape_of, step, weights

COPY: Final = "copy"
NETWORK: Final = "network"
_QUICK: Final = frozenset(
    {"launch", "launch x16", "matmul 1024", "matmul of 512 rows", "conv 56x56x64", "Tanh 1 MiB", "Transpose 1 MiB", "Softmax 1 MiB"}
)


def timing_cases(precisions: Sequence[str]) -> list[Case]:
    """Returns all cases for a device with `precisions`; FP16 is preferred where the device has both, except for a few cases."""
    return [*_kernels("fp32"), *(_kernels("fp16") if "fp16" in precisions else ()), *_copies()]


def network_case(path: Path, model: onnx.ModelProto) -> Case:
    """Returns the case of the whole network in the file `path`.

    Raises:
        ValueError: its shapes are not static, or it has no batch dimension.
    """
    shapes = {value.name: shape_of(value) for value in (*fed(model), *model.graph.output)}
    open_shapes = [f"'{name}' {list(shape)}" for name, shape in shapes.items() if not shape or min(shape) < 1]
    batches = {shape[0] for shape in shapes.values() if shape}
    if open_shapes or len(batches) != 1:
        listed = ", ".join(open_shapes or [f"'{name}' {list(shape)}" for name, shape in shapes.items()])
        raise ValueError(f"--model: {path}: expected static shapes with one batch in the first dimension, but {listed}")
    return Case(name=path.name, kind=NETWORK, batch=batches.pop(), build=lambda: model, is_quick=True)


def _kernels(precision: str) -> Iterator[Case]:
    for name, kind, batch, build in _builders():
        yield Case(name=f"{name} {precision}", kind=kind, batch=batch, build=build, precision=precision, is_quick=name in _QUICK)


def _builders() -> Iterator[tuple[str, str, int, partial[onnx.ModelProto]]]:
    yield "launch", "launch", 1, partial(model_of, [step("Neg", "x", "y")], {"x": (1, 8)}, (1, 8))
    yield (
        "launch x16",
        "launch",
        1,
        partial(_chain, [("Softmax", {"axis": -1}), ("ReduceMax", {"axes": [1], "keepdims": 1}), ("Exp", {})] * 5, (1, 8)),
    )
    for size in (256, 1024, 2048):
        for rows in (1, 64) if size == 1024 else (16,):
            name = f"matmul {size}" if rows != 1 else f"matmul {size} of one row"
            yield name, "matmul", rows, partial(_products, (rows,), size, 4 if size < 2048 else 2)
    yield "matmul of 512 rows", "matmul", 1, partial(_products, (1, 512), 1024, 4)
    for batch in (6, 24):
        yield f"matmul 512 batch {batch}", "matmul", batch, partial(_products, (batch,), 512, 4)
    for side, channels, kernel in ((56, 64, 3), (28, 128, 3), (14, 256, 3), (14, 512, 1)):
        name = f"conv {side}x{side}x{channels}" + ("" if kernel == 3 else " by 1x1")
        yield name, "convolution", 1, partial(_convolutions, side, channels, kernel)
    for op_type in ("Tanh", "Erf", "Add"):
        for size, text in ((1 << 16, "256 KiB"), (1 << 18, "1 MiB")):
            yield f"{op_type} {text}", "element-wise", 1, partial(_inside, op_type, size)
    yield "Transpose 1 MiB", "movement", 1, partial(_inside, "Transpose", 1 << 18)
    yield "Softmax 1 MiB", "reduction", 1, partial(_inside, "Softmax", 1 << 18)
    yield "LayerNormalization 1 MiB", "reduction", 1, partial(_inside, "LayerNormalization", 1 << 18)


def _copies() -> Iterator[Case]:
    for size, text in ((1 << 12, "4 KiB"), (1 << 16, "64 KiB"), (1 << 20, "1 MiB"), (1 << 23, "8 MiB")):
        shape = (1, size // 4)
        build = partial(model_of, [step("Neg", "x", "y")], {"x": shape}, shape)
        yield Case(name=f"copy {text}", kind=COPY, batch=1, build=build, is_quick=text == "1 MiB")


def _chain(links: Sequence[tuple[str, Mapping[str, Any]]], shape: tuple[int, int]) -> onnx.ModelProto:
    """A chain of small operators; reductions to one column are broadcast back, so that no two are one kernel."""
    steps: list[Step] = []
    name = "x"
    for at, (op_type, attributes) in enumerate(links):
        steps.append(step(op_type, name, f"h{at}", **attributes))
        name = f"h{at}"
    return model_of([*steps, step("Add", f"x {name}", "y")], {"x": shape}, shape)


def _products(rows: tuple[int, ...], size: int, count: int) -> onnx.ModelProto:
    """`count` products of a square matrix, between two narrow ones. With many rows in a sample they are bound by computing, else by
    reading the matrix.
    """
    constants: dict[str, Array] = {"first": weights(16, size), "last": weights(size, 16)}
    steps = [step("MatMul", "x first", "h0")]
    for at in range(count):
        constants[f"w{at}"] = weights(size, size)
        steps.append(step("MatMul", f"h{at} w{at}", f"h{at + 1}"))
    steps.append(step("MatMul", f"h{count} last", "y"))
    return model_of(steps, {"x": (*rows, 16)}, (*rows, 16), constants=constants)


def _convolutions(side: int, channels: int, kernel: int) -> onnx.ModelProto:
    """Four equal convolutions, from one channel to one number."""
    constants: dict[str, Array] = {"first": weights(channels, 1, 1, 1)}
    steps = [step("Conv", "x first", "h0")]
    edge = kernel // 2
    for at in range(4):
        constants[f"w{at}"] = weights(channels, channels, kernel, kernel)
        steps.append(step("Conv", f"h{at} w{at}", f"h{at + 1}", pads=[edge] * 4))
    steps.append(step("GlobalAveragePool", "h4", "y"))
    return model_of(steps, {"x": (1, 1, side, side)}, (1, channels, 1, 1), constants=constants)


def _inside(op_type: str, elements: int) -> onnx.ModelProto:
    """Four operators on a tensor of `elements`, which a product makes of a few numbers and a sum reduces again."""
    columns = 512
    rows = elements // columns
    constants: dict[str, Array] = {
        "c": np.linspace(0.1, 0.9, elements, dtype=np.float32).reshape(1, rows, columns),
        "axes": np.array([1]),
    }
    steps = [step("Mul", "x c", "h0")]
    for at in range(4):
        last, name = f"h{at}", f"h{at + 1}"
        if op_type == "Add":
            steps.append(step("Add", f"{last} {last}", name))
        elif op_type == "Transpose":  # two in a row would be one, or none
            steps += [step("Transpose", last, f"t{at}", perm=[0, 2, 1]), step("Tanh", f"t{at}", name)]
        elif op_type == "LayerNormalization":
            constants["scale"] = np.ones(columns, np.float32)
            steps.append(step(op_type, f"{last} scale", name, axis=-1))
        else:
            steps.append(step(op_type, last, name, **({"axis": -1} if op_type == "Softmax" else {})))
    steps.append(step("ReduceSum", "h4 axes", "y", keepdims=1))
    return model_of(steps, {"x": (1, 1, columns)}, (1, 1, columns), constants=constants)
