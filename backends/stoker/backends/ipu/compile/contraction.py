"""Which nodes run on the matrix unit, and what they are to it."""

import math

import onnx_ir as ir

from stoker.backends.ipu.compile.tiling import Contraction
from stoker.backends.ipu.hardware import IpuHardware
from stoker.compiler.lowering.tensor_facts import TensorFacts

#: Operators that the matrix unit runs.
CONTRACTIONS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm", "FusedMatMul"})


def contraction_of(
    node: ir.Node, inputs: list[TensorFacts | None], output: TensorFacts, hardware: IpuHardware, *, is_fp8: bool, partials_type: str
) -> Contraction:
    """`node`, which must be one of `CONTRACTIONS`, as a contraction."""
    left, right = inputs[0], inputs[1]
    if left is None or right is None:
        raise AssertionError(f"{node.op_type} without two inputs passed the checker")
    element_bytes = 1.0 if is_fp8 else left.element_bytes
    is_half = left.bits <= 16
    macs = (hardware.fp8_flops if is_fp8 else hardware.fp16_flops if is_half else hardware.fp32_flops) // 2
    partial_bytes = 2.0 if is_half and partials_type == "half" else 4.0

    def made(
        *, groups: int, rows: int, inner: int, outer: int, taps: int = 1, kernel: tuple[int, ...] = (), strides: tuple[int, ...] = ()
    ) -> Contraction:
        return Contraction(
            groups=groups,
            rows=rows,
            inner=inner,
            outer=outer,
            taps=taps,
            kernel=kernel,
            strides=strides,
            macs_per_cycle=max(macs, 1),
            input_bytes=element_bytes,
            weight_bytes=1.0 if is_fp8 else right.element_bytes,
            partial_bytes=partial_bytes,
            output_bytes=output.element_bytes,
            is_weight_constant=right.is_constant,
            is_rearranged=not kernel or not (is_half or is_fp8),
        )

    if node.op_type in ("Conv", "ConvTranspose"):
        groups = node.attributes.get_int("group", 1)
        kernel = right.shape[2:]
        strides = tuple(node.attributes.get_ints("strides", ()) or (1,) * len(kernel))
        if node.op_type == "Conv":
            rows, outer = output.shape[0] * math.prod(output.shape[2:]), right.shape[0] // groups
        else:  # every input position touches each tap once, so the work is counted at the input
            rows, outer, strides = left.shape[0] * math.prod(left.shape[2:]), right.shape[1], (1,) * len(kernel)
        return made(
            groups=groups,
            rows=rows,
            inner=left.shape[1] // groups,
            outer=outer,
            taps=math.prod(kernel),
            kernel=tuple(kernel),
            strides=strides,
        )
    if node.op_type == "Gemm":
        inner = left.shape[0] if node.attributes.get_int("transA", 0) else left.shape[1]
        return made(groups=1, rows=output.shape[0], inner=inner, outer=output.shape[1])
    inner = left.shape[-1]
    outer = right.shape[-1] if len(right.shape) > 1 else 1
    if math.prod(right.shape[:-2]) <= 1:
        return made(groups=1, rows=output.elements // max(outer, 1), inner=inner, outer=outer)
    groups = math.prod(output.shape[:-2])
    return made(groups=groups, rows=left.shape[-2] if len(left.shape) > 1 else 1, inner=inner, outer=outer)
