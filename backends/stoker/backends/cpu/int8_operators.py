"""Selects the operators and nodes of a model that become INT8.

A transformer loses most of its accuracy where Add, Mul, LayerNormalization and Softmax are quantised, and gains nearly all of its speed
from MatMul and Gemm. Two layers of an encoder, 8 rows of 16 tokens: 20.7 dB with every operator that ONNX Runtime can quantise, 29.9 dB
with MatMul and Gemm, more where the products of two activations and the results stay FP32, 39.5 dB with dynamic quantisation.

INT8 weights use 7 or 8 bits. ONNX Runtime multiplies unsigned activations with signed weights. x86 CPUs without VNNI add two
such products in 16 bits, which saturate: 255 * 127 + 255 * 127 is above 32,767. Weights of 7 bits cannot reach that, at the same speed;
their rounding costs some 3 dB. CPUs with VNNI and those of other architectures add in 32 bits.
"""

import logging
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state
from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

from stoker.backends.api.nearest import did_you_mean
from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.options import CompilerOptions

logger = logging.getLogger(__name__)

#: What the transformer preset and dynamic quantisation quantise.
PRODUCTS: Final = frozenset({"MatMul", "Gemm"})
_FUSED_ATTENTION = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention"})
#: Between the Softmax of attention and the product with the values.
_PASSING = frozenset({"Cast", "Dropout", "Expand", "Identity", "Mul", "Reshape", "Squeeze", "Transpose", "Unsqueeze", "Where"})
#: Nodes that are followed from a Softmax.
_LONGEST_CHAIN: Final = 6


@dataclass(frozen=True, slots=True)
class Selection:
    """The operators to quantise.

    Attributes:
        op_types: Operators, sorted.
        preset: The name of the choice, with its reason where it was made automatically.
        excluded: Names of nodes that stay as they are.
    """

    op_types: tuple[str, ...]
    preset: str
    excluded: tuple[str, ...]


def select(model: onnx.ModelProto, options: CompilerOptions, *, is_dynamic: bool) -> Selection:
    """Returns the selection by `options` from the operators of `model`.

    Raises:
        OptionError: a node to be skipped is not in the model.
        CompileError: nothing is left to be quantised.
    """
    check_names(model, options)
    preset = "MatMul and Gemm with constant weights" if is_dynamic else _preset(model, options.int8_preset)
    known = PRODUCTS if is_dynamic or preset.startswith("transformer") else {*QDQRegistry, *QLinearOpsRegistry}
    present = {node.op_type for node in model.graph.node}
    lone = _softmax_of_one(model) if preset == "all" else _of_activations(model)
    if lone and preset == "all":
        logger.warning("%d node(s) stay fp32, since a Softmax over one element is 0 in bytes: %s", len(lone), ", ".join(lone))
    op_types = tuple(sorted((known & present) - set(options.int8_skip_op_types)))
    chosen = Selection(op_types, preset, (*options.int8_skip_op_names, *lone))
    require_some(model, chosen, (f"int8_dynamic is for {preset}",) if is_dynamic else ())
    return chosen


def require_some(model: onnx.ModelProto, chosen: Selection, reasons: Sequence[str] = ()) -> None:
    """Raises:
    CompileError: no node of `model` is left to be quantised; `reasons` say why.
    """
    if any(node.op_type in chosen.op_types and node.name not in chosen.excluded for node in model.graph.node):
        return
    present = ", ".join(sorted({node.op_type for node in model.graph.node}))
    why = "".join(f"; {each}" for each in reasons)
    raise CompileError(f"nothing can be quantised: of the model's operators {present} none is left for int8{why}")


def check_types(op_types: Iterable[str]) -> None:
    """Raises:
    OptionError: a name is of no operator of ONNX or ONNX Runtime; the nearest are named.
    """
    # ONNX Runtime may be built without the list of its own operators.
    own: Iterable[Any] = getattr(onnxruntime_pybind11_state, "get_all_operator_schema", tuple)()
    known = {schema.name for schema in (*onnx.defs.get_all_schemas_with_history(), *own)} | {*QDQRegistry, *QLinearOpsRegistry}
    for name in op_types:
        if name not in known:
            raise OptionError(f"--int8_skip_op_types: there is no operator '{name}'{did_you_mean(name, sorted(known))}")


def check_names(model: onnx.ModelProto, options: CompilerOptions) -> None:
    """Says which of the operators to be skipped the model lacks, so that one command line does for several models.

    Raises:
        OptionError: a node to be skipped is not in the model; the nearest are named.
    """
    types = {node.op_type for node in model.graph.node}
    for name in options.int8_skip_op_types:
        if name not in types:
            logger.warning("--int8_skip_op_types: the converted model has no %s, so that there is none to skip", name)
    names = {node.name for node in model.graph.node}
    for name in options.int8_skip_op_names:
        if name not in names:
            raise OptionError(f"--int8_skip_op_names: the converted model has no '{name}'{did_you_mean(name, sorted(names))}")


def is_transformer(model: onnx.ModelProto) -> bool:
    """Whether the graph has attention (a Softmax that is multiplied with another activation, or a fused operator), and no more weights in
    Conv than in MatMul and Gemm.
    """
    constants = _constants(model.graph)
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    has_attention = any(
        node.op_type in _FUSED_ATTENTION or (node.op_type == "Softmax" and _is_attention(node, readers, constants))
        for node in model.graph.node
    )
    return has_attention and _weights(model, {"Conv", "ConvTranspose"}, constants) <= _weights(model, PRODUCTS, constants)


def _preset(model: onnx.ModelProto, preset: str) -> str:
    if preset != "auto":
        return preset
    return "transformer, since the graph has attention: MatMul and Gemm with constant weights" if is_transformer(model) else "all"


def _of_activations(model: onnx.ModelProto) -> tuple[str, ...]:
    """Names of the products of two activations, as those of attention are.

    The range of attention's weights depends on how many items there are: calibrated with 16, a lone item's weight of 1 would be clipped.
    """
    constants = _constants(model.graph)
    return tuple(
        node.name for node in model.graph.node if node.op_type in PRODUCTS and not any(each in constants for each in node.input[:2])
    )


def _softmax_of_one(model: onnx.ModelProto) -> tuple[str, ...]:
    """Names of each Softmax whose dimension is 1 or open, and of what reads it.

    Where bytes go in and come out, ONNX Runtime takes its kernel for Softmax in bytes, which gives 0 for a single element instead of 1
    (1.22 to 1.31).
    """
    shapes = {
        each.name: each.type.tensor_type.shape.dim
        for graph in [onnx.shape_inference.infer_shapes(model).graph]
        for each in (*graph.value_info, *graph.input, *graph.output)
    }
    found: dict[str, None] = {}
    for node in model.graph.node:
        if node.op_type != "Softmax":
            continue
        axis = next((each.i for each in node.attribute if each.name == "axis"), -1)
        dims = shapes.get(node.output[0], ())
        if -len(dims) <= axis < len(dims) and dims[axis].dim_value > 1:
            continue
        found.update(dict.fromkeys([node.name, *(each.name for each in model.graph.node if node.output[0] in each.input)]))
    return tuple(found)


def _is_attention(softmax: onnx.NodeProto, readers: dict[str, list[onnx.NodeProto]], constants: dict[str, int]) -> bool:
    waiting = [(softmax.output[0], 0)]
    while waiting:
        name, steps = waiting.pop()
        for reader in readers.get(name, ()):
            if reader.op_type == "MatMul" and not any(each in constants for each in reader.input):
                return True
            if reader.op_type in _PASSING and steps < _LONGEST_CHAIN:
                waiting.append((reader.output[0], steps + 1))
    return False


def _constants(graph: onnx.GraphProto) -> dict[str, int]:
    """Elements of each constant."""
    found = {each.name: int(np.prod(each.dims)) for each in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            found[node.output[0]] = sum(int(np.prod(each.t.dims)) for each in node.attribute)
    return found


def _weights(model: onnx.ModelProto, op_types: Iterable[str], constants: dict[str, int]) -> int:
    return sum(constants.get(node.input[1], 0) for node in model.graph.node if node.op_type in op_types and len(node.input) > 1)


def not_finite_constants(graph: onnx.GraphProto) -> set[str]:
    """Names of the constants of floats that hold NaN or infinity."""
    tensors = {each.name: each for each in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            tensors[node.output[0]] = node.attribute[0].t
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
    return {name for name, each in tensors.items() if each.data_type in floats and not np.all(np.isfinite(numpy_helper.to_array(each)))}


_X86: Final = frozenset({"x86_64", "amd64", "i386", "i686"})
#: AVX512's, and that of CPUs without AVX512, as Linux names them.
_VNNI: Final = frozenset({"avx512_vnni", "avx_vnni"})


def weight_bits(options: CompilerOptions) -> tuple[int, str]:
    """Bits of the weights that `int8_weight_bits` asks for, 7 or 8, and the text of the summary."""
    if options.int8_weight_bits != "auto":
        return int(options.int8_weight_bits), options.int8_weight_bits
    if is_saturating():
        return 7, "7, since this CPU adds products in 16 bits (x86 without VNNI)"
    return 8, "8"


def is_saturating(cpuinfo: Path = Path("/proc/cpuinfo"), machine: str = "") -> bool:
    """Whether ONNX Runtime's INT8 products may saturate on this CPU; of an x86 CPU whose flags `cpuinfo` does not list, that they may.

    Args:
        cpuinfo: A file with the CPU's flags, in Linux's form.
        machine: The architecture; empty: this process's.
    """
    if (machine or platform.machine()).lower() not in _X86:
        return False
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return True
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return _VNNI.isdisjoint(flags)
