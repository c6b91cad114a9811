"""Checks a model against the limits of the device, and attaches the vendor's status to errors.

TopsInference reports by a status (`stoker.backends.gcu.status`). Errors here carry the matching status. `with_status` appends its name to
the text for users who know the vendor's logs.

The tables hold the operators and element types that the simulated GCU runs. All unsupported nodes of a model are reported at once. The
vendor publishes no table for the i20. Known facts: some ONNX models are not supported, int8 is not supported, and shapes are static. The
table holds the operators of vision and language networks, without those that need value-dependent sizes, strings, sequences, integer
products or training. Nodes whose inputs are all known at compile time never reach the device and are not checked.
"""

import contextlib
import enum
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from stoker.backends.gcu.hardware import GcuHardware
from stoker.backends.gcu.status import Status
from stoker.compiler.errors import CompileError, OptionError, ShapeError, Unsupported, UnsupportedOperators
from stoker.compiler.lowering.typed_graph import node_label, words
from stoker.compiler.passes.static_values import static_values

_MARK = "[TopsInference:"


class VendorStatus(enum.Enum):
    """Why a model is rejected; the value is the vendor's code."""

    UNSUPPORTED_MODEL = Status.TIF_PARSER_UNSUPPORTED_MODEL
    UNSUPPORTED_OPERATOR = Status.TIF_UN_SUPPORTED_OPERATOR
    UNSUPPORTED_SHAPE = Status.TIF_MIS_MATCHED_SHAPE_OR_DIM
    UNSUPPORTED_TYPE = Status.TIF_UN_SUPPORTED_DATA_TYPE
    OUT_OF_MEMORY = Status.TIF_ALLOCATE_FAILED
    INVALID_OPTION = Status.TIF_INVALID_PARAM
    BUILD_FAILED = Status.TIF_OPTIMIZER_BUILD_FAILED


class GcuCompileError(CompileError):
    """A limit of the device is exceeded.

    Attributes:
        status: The status that the vendor's library would return.
    """

    def __init__(self, reason: str, status: VendorStatus) -> None:
        super().__init__(reason)
        self.status = status


class GcuUnsupportedOperators(UnsupportedOperators):
    """All nodes that the device cannot run, at once.

    Attributes:
        status: The status that the vendor's library would return.
    """

    def __init__(self, card: str, operators: Sequence[Unsupported]) -> None:
        super().__init__(f"the GCU ({card})", operators)
        self.status = VendorStatus.UNSUPPORTED_OPERATOR


def status_of(error: CompileError) -> VendorStatus:
    """The status that the vendor's library would return for the model or option that `error` is about."""
    if isinstance(error, GcuCompileError | GcuUnsupportedOperators):
        return error.status
    if isinstance(error, ShapeError):
        return VendorStatus.UNSUPPORTED_SHAPE
    return VendorStatus.INVALID_OPTION if isinstance(error, OptionError) else VendorStatus.BUILD_FAILED


@contextlib.contextmanager
def with_status() -> Iterator[None]:
    """Appends the vendor's status name to the text of errors that the block raises; the error types stay the same."""
    try:
        yield
    except CompileError as error:
        add_status(error)
        raise


def add_status(error: CompileError) -> None:
    """Puts the vendor's status name behind the text of `error`, once."""
    if _MARK not in str(error):
        error.args = (f"{error} {_MARK} {status_of(error).value.name}]",)


_MOVES = words(
    """Concat ConstantOfShape DepthToSpace Dropout Expand Flatten Gather GatherElements GatherND Identity Pad Reshape ScatterElements
    ScatterND Slice SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze Where"""
)
_ARITHMETIC = words(
    """Abs Add And ArgMax ArgMin AveragePool BatchNormalization Cast CastLike Ceil Clip Constant Conv ConvTranspose Cos CumSum Div Einsum
    Elu Equal Erf Exp Floor GRU Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GroupNormalization HardSigmoid HardSwish
    InstanceNormalization LRN LSTM LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization MatMul Max MaxPool Mean Min
    Mish Mod Mul Neg Not OneHot Or PRelu Pow Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
    ReduceProd ReduceSum ReduceSumSquare Relu Resize Round Selu Shape Sigmoid Sign Sin Size Softmax Softplus Softsign Sqrt Sub Sum Tan Tanh
    TopK Upsample Xor"""
)
#: Operators of ONNX Runtime's own domain that the converter's fusions create.
_CONTRIBUTED = words("BiasGelu FastGelu FusedMatMul Gelu QuickGelu SkipLayerNormalization SimplifiedLayerNormalization")
SUPPORTED = {"": _MOVES | _ARITHMETIC, "com.microsoft": _CONTRIBUTED}

_INT8 = "the i20 has no int8 arithmetic; compile the unquantised model, with build_flag fp16 or mixed"
_REASONS = {
    **dict.fromkeys(("NonMaxSuppression", "NonZero", "Unique", "Compress"), "the size of its output depends on values; shapes are static"),
    **dict.fromkeys(
        words("ConvInteger MatMulInteger QLinearConv QLinearMatMul QuantizeLinear DequantizeLinear DynamicQuantizeLinear"), _INT8
    ),
    **dict.fromkeys(("If", "Loop", "Scan"), "control flow that depends on values is not compiled"),
}
_NOT_THERE = "the device has no such operator"

#: Element types of tensors on the device.
DEVICE_TYPES = frozenset(
    {ir.DataType.BOOL, ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT8}
)
#: Further types of inputs and outputs. They must be cast at once, because the device does not compute in them.
_BORDER_TYPES = frozenset({ir.DataType.INT8, ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.UINT32})


def check_borders(model: ir.Model) -> None:
    """Checks the types of all inputs and outputs.

    Raises:
        GcuCompileError: a type is not supported on the device; the text names every such tensor.
    """
    found = [
        f"{role} '{value.name}' is {_type_name(value.dtype)}"
        for role, values in (("input", model.graph.inputs), ("output", model.graph.outputs))
        for value in values
        if value.dtype not in DEVICE_TYPES | _BORDER_TYPES
    ]
    if found:
        known = ", ".join(sorted(each.name for each in DEVICE_TYPES))
        raise GcuCompileError(f"{'; '.join(found)}; the device has {known}", VendorStatus.UNSUPPORTED_TYPE)


def check_supported(model: ir.Model, hardware: GcuHardware) -> None:
    """Checks every node that reaches the device, sub-graphs included.

    Raises:
        GcuUnsupportedOperators: the text lists all nodes that the device cannot run, with reasons.
    """
    found = list(_unsupported(model, hardware))
    if found:
        raise GcuUnsupportedOperators(hardware.name, found)


def _unsupported(model: ir.Model, hardware: GcuHardware) -> Iterator[Unsupported]:
    known = static_values(model)
    untyped: set[ir.Value] = set()
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.outputs and all(output in known for output in node.outputs):
            continue
        reason = _node_reason(node)
        # In a chain of nodes with unknown types, the first one is the cause.
        if not reason and not any(value in untyped for value in node.inputs):
            reason = _tensor_reason(node, known, hardware)
        if reason or any(value in untyped for value in node.inputs):
            untyped.update(output for output in node.outputs if output.dtype is None)
        if reason:
            yield Unsupported(node_label(node), f"{node.domain}::{node.op_type}" if node.domain else node.op_type, reason)


def operator_reason(domain: str, op_type: str) -> str:
    """Returns the reason why the device has no such operator; empty if it has one."""
    if domain not in SUPPORTED:
        return f"operators of domain '{domain}' are not known"
    if op_type not in SUPPORTED[domain]:
        return _NOT_THERE if domain else _REASONS.get(op_type, _NOT_THERE)
    return ""


def _node_reason(node: ir.Node) -> str:
    if reason := operator_reason(node.domain, node.op_type):
        return reason
    training = node.attributes.get("training_mode")
    return "it is set to training, and the device only infers" if training is not None and training.as_int() else ""


def _tensor_reason(node: ir.Node, known: frozenset[ir.Value], hardware: GcuHardware) -> str:
    read = [("reads", value) for value in node.inputs if value is not None and value not in known]
    written = [("gives", value) for value in node.outputs if value.uses() or value.is_graph_output()]
    for what, value in (*read, *written):
        if value.shape is not None and len(value.shape) > hardware.max_dims:
            return f"it {what} '{value.name}' with {len(value.shape)} dimensions; the device has at most {hardware.max_dims}"
        if value.dtype in DEVICE_TYPES or (value.dtype in _BORDER_TYPES and node.op_type == "Cast"):
            continue
        if value.dtype in (ir.DataType.INT8, ir.DataType.INT4, ir.DataType.UINT4):
            return f"it {what} '{value.name}' in {_type_name(value.dtype)}: {_INT8}"
        return f"it {what} '{value.name}' in {_type_name(value.dtype)}, which the device does not have"
    return ""


def _type_name(dtype: ir.DataType | None) -> str:
    return "of an unknown type" if dtype is None else dtype.name
