"""The small models whose results are compared with ONNX Runtime: operators, element types, shapes and batch sizes."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto

from stoker.cli.device_check.case import Case, Step, model_of, step, weights

_UNARY: Final = ("Relu", "Sigmoid", "Tanh", "Exp", "Erf", "Neg", "LeakyRelu", "HardSwish")
_BINARY: Final = ("Add", "Sub", "Mul", "Div", "Max")
_QUICK: Final = frozenset({"Relu", "Add", "MatMul", "Conv", "Softmax"})
#: Operators that are also tried in FP16.
_HALF: Final = ("Relu", "Exp", "Add", "MatMul", "Conv", "Softmax", "LayerNormalization")


def conformance_cases(precisions: Sequence[str]) -> list[Case]:
    """Returns all cases for a device with `precisions`."""
    cases = [*_operators("fp32"), *_element_types(), *_shapes(), *_batches()]
    if "fp16" in precisions:
        cases += [case for case in _operators("fp16") if case.name.partition(" ")[0] in _HALF]
    return cases


def _operators(precision: str) -> Iterator[Case]:
    for name, build in _builders():
        is_quick = name in _QUICK and precision == "fp32"
        yield Case(name=f"{name} {precision}", kind="operator", batch=2, build=build, precision=precision, is_quick=is_quick)


def _builders() -> Iterator[tuple[str, partial[onnx.ModelProto]]]:
    rows, cube, image = (2, 12), (2, 4, 6), (2, 4, 8, 8)
    for name in _UNARY:
        yield name, partial(model_of, [step(name, "x", "y")], {"x": cube}, cube)
    for name in _BINARY:
        constant = np.linspace(0.5, 2, 24, dtype=np.float32).reshape(1, 4, 6)
        yield name, partial(model_of, [step(name, "x c", "y")], {"x": cube}, cube, constants={"c": constant})
    yield "MatMul", partial(model_of, [step("MatMul", "x w", "y")], {"x": rows}, (2, 7), constants={"w": weights(12, 7)})
    yield "MatMul of inputs", partial(model_of, [step("MatMul", "x z", "y")], {"x": (2, 5, 6), "z": (2, 6, 3)}, (2, 5, 3))
    bias = {"w": weights(12, 7), "b": np.linspace(-1, 1, 7, dtype=np.float32)}
    yield "Gemm", partial(model_of, [step("Gemm", "x w b", "y")], {"x": rows}, (2, 7), constants=bias)
    convolutions: Sequence[tuple[str, Step, tuple[int, ...], tuple[int, ...]]] = (
        ("Conv", step("Conv", "x w", "y", pads=[1, 1, 1, 1]), (5, 4, 3, 3), (2, 5, 8, 8)),
        ("Conv with stride", step("Conv", "x w", "y", strides=[2, 2]), (5, 4, 2, 2), (2, 5, 4, 4)),
        ("Conv by channel", step("Conv", "x w", "y", pads=[1, 1, 1, 1], group=4), (4, 1, 3, 3), (2, 4, 8, 8)),
        ("ConvTranspose", step("ConvTranspose", "x w", "y", strides=[2, 2]), (4, 3, 2, 2), (2, 3, 16, 16)),
    )
    for name, node, shape, output in convolutions:
        yield name, partial(model_of, [node], {"x": image}, output, constants={"w": weights(*shape)})
    window = {"kernel_shape": [2, 2], "strides": [2, 2]}
    yield "MaxPool", partial(model_of, [step("MaxPool", "x", "y", **window)], {"x": image}, (2, 4, 4, 4))
    yield "AveragePool", partial(model_of, [step("AveragePool", "x", "y", **window)], {"x": image}, (2, 4, 4, 4))
    yield "GlobalAveragePool", partial(model_of, [step("GlobalAveragePool", "x", "y")], {"x": image}, (2, 4, 1, 1))
    yield "Softmax", partial(model_of, [step("Softmax", "x", "y", axis=-1)], {"x": cube}, cube)
    scales = {"s": np.linspace(0.5, 1.5, 6, dtype=np.float32), "b": np.linspace(-1, 1, 6, dtype=np.float32)}
    yield (
        "LayerNormalization",
        partial(model_of, [step("LayerNormalization", "x s b", "y", axis=-1)], {"x": cube}, cube, constants=scales),
    )
    yield "ReduceMean", partial(model_of, [step("ReduceMean", "x", "y", axes=[2])], {"x": cube}, (2, 4, 1))
    yield "ReduceMax", partial(model_of, [step("ReduceMax", "x", "y", axes=[1])], {"x": cube}, (2, 1, 6))
    yield "Transpose", partial(model_of, [step("Transpose", "x", "y", perm=[0, 2, 1])], {"x": cube}, (2, 6, 4))
    yield "Reshape", partial(model_of, [step("Reshape", "x s", "y")], {"x": cube}, (2, 24), constants={"s": np.array([2, 24])})
    yield "Concat", partial(model_of, [step("Concat", "x z", "y", axis=1)], {"x": cube, "z": cube}, (2, 8, 6))
    bounds = {"first": np.array([1]), "last": np.array([5]), "axes": np.array([2]), "steps": np.array([2])}
    yield "Slice", partial(model_of, [step("Slice", "x first last axes steps", "y")], {"x": cube}, (2, 4, 2), constants=bounds)
    picked = {"at": np.array([3, 0, 2])}
    yield "Gather", partial(model_of, [step("Gather", "x at", "y", axis=1)], {"x": cube}, (2, 3, 6), constants=picked)
    padding = {"pads": np.array([0, 1, 0, 0, 0, 2])}
    yield "Pad", partial(model_of, [step("Pad", "x pads", "y")], {"x": cube}, (2, 5, 8), constants=padding)
    limits = {"low": np.array(-0.5, np.float32), "high": np.array(0.75, np.float32)}
    yield "Clip", partial(model_of, [step("Clip", "x low high", "y")], {"x": cube}, cube, constants=limits)
    steps = [step("Greater", "x zero", "is_positive"), step("Where", "is_positive x zero", "y")]
    yield "Where", partial(model_of, steps, {"x": cube}, cube, constants={"zero": np.array(0, np.float32)})


def _element_types() -> Iterator[Case]:
    shape = (2, 5)
    for name, kind in (("INT32", TensorProto.INT32), ("INT64", TensorProto.INT64), ("FLOAT16", TensorProto.FLOAT16)):
        build = partial(model_of, [step("Add", "x x", "y")], {"x": shape}, shape, dtypes={"x": kind, "y": kind})
        yield Case(name=f"Add of {name}", kind="dtype", batch=2, build=build, precision="fp16" if name == "FLOAT16" else "fp32")
    table = {"table": weights(3, 4)}
    build = partial(
        model_of, [step("Gather", "table x", "y", axis=0)], {"x": shape}, (2, 5, 4), constants=table, dtypes={"x": TensorProto.INT64}
    )
    yield Case(name="Gather by INT64", kind="dtype", batch=2, build=build)


def _shapes() -> Iterator[Case]:
    for shape in ((2,), (2, 1), (2, 2, 3, 4, 5)):
        text = "x".join(map(str, shape[1:])) or "scalar"
        yield Case(name=f"Mul of {text}", kind="shape", batch=2, build=partial(model_of, [step("Mul", "x x", "y")], {"x": shape}, shape))


def _batches() -> Iterator[Case]:
    for batch in (1, 3, 8):
        steps = [step("MatMul", "x w", "h"), step("Relu", "h", "y")]
        build = partial(model_of, steps, {"x": (batch, 12)}, (batch, 7), constants={"w": weights(12, 7)})
        yield Case(name=f"batch {batch}", kind="batch", batch=batch, build=build, is_quick=batch == 3)
