"""Brings a model to the opset that passes work at, and back to the one that is to be written.

Upwards, `onnx.version_converter` does it. Downwards it lacks adapters for much of what BERT and ResNet are made of (ReduceMean, Split,
LayerNormalization, Softmax ...), forgets nodes' metadata, and would have to be fed all the weights; `opset_lowering` does it instead.
Neither is given large weights: the converter in C++ takes serialised models, which end at 2 GB.
"""

import logging

import onnx
import onnx_ir as ir
from onnx import version_converter
from onnx_ir.passes.common import InlinePass

from compiler.convert.opset_lowering import NoAdapter, lower_opset
from compiler.errors import CompileError, OptionError, PassError
from compiler.passes.pass_ import INTERNAL_OPSET
from compiler.passes.reading import read_model
from compiler.passes.verify import light_proto, verify

log = logging.getLogger(__name__)

#: Readable by every ONNX Runtime that Stoker supports, and the first that keeps nodes' metadata.
IR_VERSION = 10
#: Opset 1 to 6 mark broadcasting by attributes; ONNX's converter reads them only in part.
OLDEST_OPSET = 7


def opset_of(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operators that the model was written for; 1 if it does not say, as the standard has it."""
    versions = [each.version for each in model.opset_import if each.domain in ("", "ai.onnx")]
    return max(versions, default=1)


def convert_to_internal(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model at `INTERNAL_OPSET`, without functions of its own (they are inlined), and with an IR version that runtimes read.

    A newer model with an operator that the internal opset cannot express keeps its opset, with one warning.

    Raises:
        CompileError: the model's opset is unknown or too old, or ONNX's converter has no way up; the text names the operator.
    """
    version = opset_of(model)
    if version > onnx.defs.onnx_opset_version():
        raise CompileError(f"the model is of opset {version}; the installed onnx {onnx.__version__} knows {onnx.defs.onnx_opset_version()}")
    graph = _read(model)
    if graph.functions:
        InlinePass()(graph)
    if version < INTERNAL_OPSET:
        graph = _raise_opset(graph, INTERNAL_OPSET)
    elif version > INTERNAL_OPSET:
        try:
            lower_opset(graph, INTERNAL_OPSET)
            verify(graph, f"at opset {INTERNAL_OPSET}")
        except (NoAdapter, PassError) as error:
            log.warning("the model keeps its opset %d: %s", version, error)
            graph = _read(model)
            if graph.functions:
                InlinePass()(graph)
    graph.ir_version = _ir_version(graph)
    return ir.to_proto(graph)


def convert_for_output(model: onnx.ModelProto, convert_version: int, explicitly_asked: bool = False) -> onnx.ModelProto:
    """The model at opset `convert_version`, checked by ONNX; `model` is left as it was.

    Where an operator cannot be expressed at that opset, the model is returned with the opset it has, after one warning that names the
    operators.

    Args:
        model: Any model; usually one at `INTERNAL_OPSET`.
        convert_version: The opset wanted.
        explicitly_asked: The user named the version, so that another one will not do.

    Raises:
        OptionError: there is no such opset.
        CompileError: asked for explicitly, and an operator has no adapter.
    """
    if not OLDEST_OPSET <= convert_version <= onnx.defs.onnx_opset_version():
        raise OptionError(f"convert_version {convert_version}: expected {OLDEST_OPSET} to {onnx.defs.onnx_opset_version()}")
    version = opset_of(model)
    if version == convert_version:
        return model
    graph = _read(model)
    try:
        if version < convert_version:
            graph = _raise_opset(graph, convert_version)
        else:
            lower_opset(graph, convert_version)
            verify(graph, f"at opset {convert_version}")
    except (NoAdapter, CompileError) as error:
        if explicitly_asked:
            raise CompileError(f"convert_version {convert_version} was asked for: {error}") from error
        log.warning("the written model keeps opset %d instead of %d: %s", version, convert_version, error)
        return model
    return ir.to_proto(graph)


def _read(model: onnx.ModelProto) -> ir.Model:
    graph = read_model(model)
    if "ai.onnx" in graph.opset_imports:  # the other spelling of the default domain, which our passes need not know
        graph.opset_imports[""] = opset_of(model)
        del graph.opset_imports["ai.onnx"]
        for node in graph.graph.all_nodes():
            node.domain = "" if node.domain == "ai.onnx" else node.domain
    return graph


def _raise_opset(model: ir.Model, version: int) -> ir.Model:
    """`model` at a newer opset: the same weights, a new graph."""
    old = model.opset_imports.get("", 1)
    if old < OLDEST_OPSET:
        raise CompileError(f"the model is of opset {old}; {OLDEST_OPSET} is the oldest that is read")
    weights = {name: value.const_value for name, value in model.graph.initializers.items()}
    inputs = [value.name for value in model.graph.inputs]
    metadata = {node.outputs[0].name: dict(node.metadata_props) for node in model.graph.all_nodes() if node.outputs and node.metadata_props}
    try:
        with light_proto(model) as proto:
            raised = ir.from_proto(version_converter.convert_version(proto, version))
    except (RuntimeError, onnx.checker.ValidationError, ValueError) as error:  # the converter speaks C++: RuntimeError for all it cannot do
        raise CompileError(f"opset {old} cannot be brought to {version}: {_reason(error)}") from error
    for value in list(raised.graph.inputs):
        tensor = weights.get(str(value.name))
        if tensor is not None and value.name not in raised.graph.initializers:
            value.const_value = tensor
            raised.graph.register_initializer(value)
    kept = [value for value in raised.graph.inputs if value.name in inputs]
    raised.graph.inputs.clear()
    raised.graph.inputs.extend(kept)
    for node in raised.graph.all_nodes():
        if node.outputs and node.outputs[0].name in metadata:
            node.metadata_props.update(metadata[node.outputs[0].name])
    raised.metadata_props.update(model.metadata_props)
    return raised


def _reason(error: Exception) -> str:
    """What the converter says, without the place in its source."""
    text = " ".join(str(error).split())
    return text.split("failed: ", 1)[-1]


def _ir_version(model: ir.Model) -> int:
    """`IR_VERSION`, or what a newer opset is at least written with."""
    needed: int = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid(d, v) for d, v in model.opset_imports.items()], True)
    return max(IR_VERSION, needed)
