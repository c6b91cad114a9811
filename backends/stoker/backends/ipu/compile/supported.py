"""The operators and element types that the simulated IPU runs. All unsupported nodes of a model are reported at once.

These are all operators that this compiler can lower onto the device and that ONNX Runtime's CPU kernels can compute. Graphcore's tools take
fewer: `porting.py` judges that.
Nodes whose inputs are all known at compile time never reach the device and are not checked; shape arithmetic may be in int64.
"""

from collections.abc import Iterator

import onnx_ir as ir

from stoker.backends.ipu.hardware import IpuHardware
from stoker.compiler.errors import CompileError, Unsupported, UnsupportedOperators
from stoker.compiler.lowering.typed_graph import MOVING, words
from stoker.compiler.passes.static_values import static_values

_ARITHMETIC = words(
    """Acos Acosh Add AffineGrid And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool BatchNormalization BitShift BitwiseAnd
    BitwiseNot BitwiseOr BitwiseXor BlackmanWindow Cast CastLike Ceil Celu CenterCropPad Col2Im Constant Conv ConvTranspose Cos Cosh CumSum
    DFT DeformConv DequantizeLinear Det Div Einsum Elu Equal Erf Exp EyeLike Floor GRU Gelu Gemm GlobalAveragePool GlobalLpPool Greater
    GreaterOrEqual GridSample GroupNormalization HammingWindow HannWindow HardSigmoid HardSwish InstanceNormalization IsInf IsNaN LRN LSTM
    LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization LpPool MatMul Mean MeanVarianceNormalization
    MelWeightMatrix Mish Mod Mul Not Or PRelu Pow QuantizeLinear RMSNormalization RNN Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum
    ReduceLogSumExp ReduceMean ReduceProd ReduceSum ReduceSumSquare Resize RoiAlign RotaryEmbedding Round STFT Selu Shape Shrink Sigmoid
    Sin Sinh Size Softmax Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Upsample Xor"""
)

#: Operators of ONNX Runtime's own domain that correspond to PopRT's fusions and custom operators.
_CONTRIBUTED = words(
    """Attention BiasGelu FastGelu FusedMatMul Gelu MultiHeadAttention QuickGelu RotaryEmbedding SimplifiedLayerNormalization
    SkipLayerNormalization SkipSimplifiedLayerNormalization"""
)

_SUPPORTED = {"": MOVING | _ARITHMETIC, "com.microsoft": _CONTRIBUTED}

_VALUE_SIZED = "the size of its output depends on values, and the IPU runs static shapes"
_RANDOM = "random numbers are not simulated"
_NOT_TENSORS = "the IPU has neither strings nor sequences nor optional values"
_INTEGER_PRODUCTS = "the IPU multiplies matrices in floating point only"
_REASONS = {
    **dict.fromkeys(("NonMaxSuppression", "NonZero", "Unique"), _VALUE_SIZED),
    **dict.fromkeys(("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"), _RANDOM),
    **dict.fromkeys(("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"), _INTEGER_PRODUCTS),
    **dict.fromkeys(
        words(
            """ConcatFromSequence ImageDecoder Optional OptionalGetElement OptionalHasElement RegexFullMatch SequenceAt SequenceConstruct
        SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap SplitToSequence StringConcat StringNormalizer StringSplit
        TfIdfVectorizer"""
        ),
        _NOT_TENSORS,
    ),
}

#: Element types the device stores. 64-bit integers are accepted if they are only indices; see `_INDEX_READERS`.
_DEVICE_TYPES = frozenset(
    {
        ir.DataType.BOOL,
        ir.DataType.FLOAT,
        ir.DataType.FLOAT16,
        ir.DataType.INT8,
        ir.DataType.INT16,
        ir.DataType.INT32,
        ir.DataType.UINT8,
        ir.DataType.UINT16,
        ir.DataType.UINT32,
    }
)
_FLOAT8_TYPES = frozenset({ir.DataType.FLOAT8E4M3FNUZ, ir.DataType.FLOAT8E5M2FNUZ})
_INDEX_TYPES = frozenset({ir.DataType.INT64})
#: Operators that read or pass on indices. ONNX prescribes int64 for these; the device stores 32 bits.
_INDEX_READERS = MOVING | {"ArgMax", "ArgMin", "Cast", "CastLike", "Constant", "Range", "Resize", "RoiAlign", "Shape", "Size", "Upsample"}

_HINTS = {
    ir.DataType.INT64: "; the pass int64_to_int32 converts it",
    ir.DataType.DOUBLE: "; the pass double_to_float converts it",
}


def check_streams(model: ir.Model) -> None:
    """Checks that the device supports the types of all inputs and outputs.

    Raises:
        CompileError: a type is not supported; the text names every such tensor.
    """
    found = []
    for role, values in (("input", model.graph.inputs), ("output", model.graph.outputs)):
        for value in values:
            if value.dtype not in _DEVICE_TYPES:
                hint = _HINTS.get(value.dtype, "") if value.dtype is not None else ""
                found.append(f"{role} '{value.name}' is {_type_name(value.dtype)}, which the IPU does not have{hint}")
    if found:
        raise CompileError("; ".join(found))


def check_supported(model: ir.Model, hardware: IpuHardware, *, has_custom_libraries: bool = False) -> None:
    """Checks every node that reaches the device, sub-graphs included.

    Args:
        model: A model with all types inferred.
        hardware: The hardware to run on.
        has_custom_libraries: Whether operators of unknown domains come with the libraries that the user gave.

    Raises:
        UnsupportedOperators: the text lists all nodes that the device cannot run, with reasons.
    """
    found = list(_unsupported(model, hardware, has_custom_libraries))
    if found:
        raise UnsupportedOperators(f"ipu{hardware.ipu_version} ({hardware.system})", found)


def _unsupported(model: ir.Model, hardware: IpuHardware, has_custom_libraries: bool) -> Iterator[Unsupported]:
    known = static_values(model)
    untyped: set[ir.Value] = set()
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.outputs and all(output in known for output in node.outputs):
            continue
        reason = _reason(node, hardware, known, has_custom_libraries)
        is_consequence = node.op_type in _SUPPORTED.get(node.domain, ()) and any(value in untyped for value in node.inputs)
        if reason:
            untyped.update(output for output in node.outputs if output.dtype is None)
        # In a chain of nodes with unknown types, the first one is the cause.
        if reason and not is_consequence:
            op_type = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
            label = node.name or next((output.name for output in node.outputs if output.name), "")
            yield Unsupported(label or "", op_type, reason)


def _reason(node: ir.Node, hardware: IpuHardware, known: frozenset[ir.Value], has_custom_libraries: bool) -> str:
    """Returns the reason why the device cannot run `node`; empty if it can."""
    if reason := operator_reason(node.domain, node.op_type, has_custom_libraries=has_custom_libraries):
        return reason
    if node.domain not in _SUPPORTED and any(output.dtype is None or output.shape is None for output in node.outputs):
        return "type and shape of what it gives are not known; custom_shape_inference names the file that says them"
    training = node.attributes.get("training_mode")
    if training is not None and training.as_int():
        return "it is set to training, and the program only infers"
    read = [
        (f"reads '{value.name}'", value)
        for value in node.inputs
        if value is not None and (value not in known or value.dtype in _FLOAT8_TYPES)
    ]
    written = [(f"gives '{value.name}'", value) for value in node.outputs if value.uses() or value.is_graph_output()]
    for what, value in (*read, *written):
        if value.dtype in _FLOAT8_TYPES and hardware.fp8_flops == 0:
            return f"it {what} in fp8, which {hardware.system} has not; compile for ipu21"
        if value.dtype in _INDEX_TYPES and node.op_type not in _INDEX_READERS and (what, value) in read:
            return f"it {what} in {value.dtype.name}, and the IPU computes with at most 32 bits; the pass int64_to_int32 converts it"
        if value.dtype not in _DEVICE_TYPES | _FLOAT8_TYPES | _INDEX_TYPES:
            return f"it {what} in {_type_name(value.dtype)}, which the IPU does not have" + (
                _HINTS.get(value.dtype, "") if value.dtype else ""
            )
    return ""


def operator_reason(domain: str, op_type: str, *, has_custom_libraries: bool = False) -> str:
    """Returns the reason why the device has no such operator; empty if it has one."""
    if domain not in _SUPPORTED:
        known = f"operators of domain '{domain}' are not known; custom_library_so_paths names the library that has them"
        return "" if has_custom_libraries else known
    if op_type in _SUPPORTED[domain]:
        return ""
    return _REASONS.get(op_type, "the IPU has no such operator") if not domain else "the IPU has no such operator"


def _type_name(dtype: ir.DataType | None) -> str:
    return "an unknown type" if dtype is None else dtype.name
