"""Converts a model to the internal opset of the passes, and back to the requested opset.

`opset_walk` does the conversion, using ONNX's operator schemas. ONNX's version converter is not used: it changes the results of some
operators (Upsample, Resize, Hardmax, Scan), lacks downward adapters (ReduceMean, LayerNormalization, Softmax), loses node metadata, and
needs the serialised model with all weights, which is limited to 2 GB.
"""

import logging

import onnx
import onnx_ir as ir

from stoker.compiler.convert.opset_versions import set_defaults_of_functions
from stoker.compiler.convert.opset_walk import NoCounterpart, lower_opset, raise_opset
from stoker.compiler.errors import CompileError, OptionError, PassError
from stoker.compiler.passes.registry import INTERNAL_OPSET, read_model
from stoker.compiler.passes.shape_inference import verify
from stoker.compiler.passes.simplify import inline_functions

log = logging.getLogger(__name__)

#: All supported ONNX Runtime versions read it, and it is the first opset that keeps node metadata.
IR_VERSION = 10
#: The installed ONNX Runtime rejects newer opsets. They are still in development when it is released.
NEWEST_RUN_OPSET = 26
#: Opsets 1 to 6 use attributes for broadcasting; ONNX's converter reads them only in part.
OLDEST_OPSET = 7


def opset_of(model: onnx.ModelProto) -> int:
    """Returns the version of the default ONNX domain that the model imports; 1 if it imports none, as in the ONNX standard."""
    versions = [each.version for each in model.opset_import if each.domain in ("", "ai.onnx")]
    return max(versions, default=1)


def convert_to_internal(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model at `INTERNAL_OPSET`, with its functions inlined and an IR version that runtimes read.

    A newer model with an operator that the internal opset cannot express keeps its opset, and one warning is logged.

    Raises:
        CompileError: the model's opset is unknown or too old, or ONNX's converter has no way up; the text names the operator.
    """
    version = opset_of(model)
    if version > onnx.defs.onnx_opset_version():
        raise CompileError(f"the model is of opset {version}; the installed onnx {onnx.__version__} knows {onnx.defs.onnx_opset_version()}")
    graph = _read(model)
    inline_functions(graph)
    if version < INTERNAL_OPSET:
        graph = _raise_opset(graph, INTERNAL_OPSET)
    elif version > INTERNAL_OPSET:
        try:
            _lower_opset(graph, INTERNAL_OPSET)
        except (NoCounterpart, PassError) as error:
            graph = _at_runtime_opset(model, version)
            log.warning("the model keeps its opset %d: %s", graph.opset_imports[""], error)
    set_defaults_of_functions(graph)
    graph.ir_version = _ir_version(graph)
    return ir.to_proto(graph)


def convert_for_output(model: onnx.ModelProto, convert_version: int, is_explicit: bool = False) -> onnx.ModelProto:
    """Returns the model at opset `convert_version`, checked by ONNX. `model` is not changed.

    If an operator cannot be expressed at that opset, the result keeps its opset, and one warning names the operators.

    Args:
        model: Any model; usually one at `INTERNAL_OPSET`.
        convert_version: The requested opset.
        is_explicit: Whether the user named the version; any other opset is then an error.

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
            _lower_opset(graph, convert_version)
    except (NoCounterpart, CompileError) as error:
        if is_explicit:
            raise CompileError(f"convert_version {convert_version} was asked for: {error}") from error
        log.warning("the written model keeps opset %d instead of %d: %s", version, convert_version, error)
        return model
    return ir.to_proto(graph)


def _read(model: onnx.ModelProto) -> ir.Model:
    try:
        graph = read_model(model)
    except (ir.serde.SerdeError, ValueError) as error:
        raise CompileError(f"the model cannot be read: {error.__cause__ or error}") from error
    if "ai.onnx" in graph.opset_imports:  # the second spelling of the default domain; passes do not handle it
        graph.opset_imports[""] = opset_of(model)
        del graph.opset_imports["ai.onnx"]
        for node in graph.graph.all_nodes():
            node.domain = "" if node.domain == "ai.onnx" else node.domain
    return graph


def _lower_opset(model: ir.Model, version: int) -> None:
    """Converts `model` to an older opset in place.

    Raises:
        NoCounterpart, PassError: it cannot be expressed there; the model is then not to be used further.
    """
    lower_opset(model, version)
    verify(model, f"at opset {version}")


def _at_runtime_opset(model: onnx.ModelProto, version: int) -> ir.Model:
    """Returns the model, which is of opset `version`, at that opset or at the newest that ONNX Runtime reads.

    Raises:
        CompileError: ONNX Runtime reads only older opsets, and a node has no counterpart there; the text names it.
    """
    graph = _read(model)
    inline_functions(graph)
    if version > NEWEST_RUN_OPSET:
        try:
            _lower_opset(graph, NEWEST_RUN_OPSET)
        except (NoCounterpart, PassError) as error:
            raise CompileError(f"opset {version} cannot be converted to {NEWEST_RUN_OPSET}, the newest that can be run: {error}") from error
    return graph


def _raise_opset(model: ir.Model, version: int) -> ir.Model:
    """Converts `model` to a newer opset in place.

    Raises:
        CompileError: the model's opset is too old, or a node has no counterpart; the text names it.
    """
    old = model.opset_imports.get("", 1)
    if old < OLDEST_OPSET:
        raise CompileError(f"the model is of opset {old}; {OLDEST_OPSET} is the oldest that is read")
    try:
        raise_opset(model, version)
        model.ir_version = _ir_version(model)  # below opset 4, values that adapters make (scales, axes) would also have to be graph inputs
        verify(model, f"at opset {version}", shapes=False)  # the source may declare sizes that the newer rules compute differently
    except (NoCounterpart, PassError) as error:
        raise CompileError(f"opset {old} cannot be converted to {version}: {error}") from error
    return model


def _ir_version(model: ir.Model) -> int:
    """Returns `IR_VERSION`, or the lowest IR version that the model's opset requires."""
    needed: int = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid(d, v) for d, v in model.opset_imports.items()], True)
    return max(IR_VERSION, needed)
