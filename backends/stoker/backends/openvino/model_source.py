"""A version's model file as OpenVINO's `Model`, with the names that its inputs and outputs are served by, and what it declares.

An ONNX file is inspected by our own reader, so that neither OpenVINO nor its weights are touched before it is loaded. All other formats are
read by OpenVINO, each by its own front end after a check of the files: what is of another format never reaches OpenVINO's guessing, and
damage that would crash the process is found before.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import openvino as ov
from openvino.frontend import (
    FrontEndManager,
    GeneralFailure,
    InitializationFailure,
    NotImplementedFailure,
    OpConversionFailure,
    OpValidationFailure,
)

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import VARIABLE, FileTensor, ModelFacts
from stoker.backends.openvino.formats import ModelFormat, format_of
from stoker.backends.openvino.integers import bodies_of, inexact_integers
from stoker.backends.openvino.ir_files import check_ir, weights_file
from stoker.backends.openvino.runtime import OPENVINO_ERRORS, SERVED, GraphFacts, public_text
from stoker.backends.openvino.tensor_bundle import MAX_INDEX_BYTES, DamagedIndex, check_index
from stoker.backends.openvino.tflite_signature import DamagedTflite, SignatureNames, signature_names

#: Such as 2026.4.1, for messages.
RELEASE = ov.__version__.partition("-")[0]
#: Nodes that a rejection names.
_NAMED_NODES = 4
#: OpenVINO's names of its front ends. `ov.Core` reads the other formats.
_FRONT_ENDS: Mapping[ModelFormat, str] = {
    ModelFormat.SAVED_MODEL: "tf",
    ModelFormat.FROZEN_GRAPH: "tf",
    ModelFormat.TFLITE: "tflite",
    ModelFormat.PADDLE: "paddle",
}
_READING_ERRORS = (
    *OPENVINO_ERRORS,
    GeneralFailure,
    InitializationFailure,
    NotImplementedFailure,
    OpConversionFailure,
    OpValidationFailure,
)
#: What TensorFlow appends to the name of an operator for its first output.
_FIRST_OUTPUT = ":0"


@dataclass(frozen=True, slots=True)
class PortNames:
    """The names of an input or output: the one it is served by, and further ones that a configuration may use instead."""

    name: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceModel:
    """A model as read, with the names of its inputs and outputs in OpenVINO's order."""

    model: ov.Model
    inputs: tuple[PortNames, ...]
    outputs: tuple[PortNames, ...]


def read_model(core: ov.Core, files: ModelFiles, model_filename: str) -> SourceModel:
    """Reads the graph, and maps its weights.

    Raises:
        ModelLoadError: OpenVINO does not read the file, it has no outputs, two of the same name, or keeps a state.
    """
    path = files.path(model_filename)
    kind = format_of(model_filename)
    signature = _CHECKS[kind](files, model_filename) if kind in _CHECKS else None
    try:
        model = core.read_model(str(path)) if kind not in _FRONT_ENDS else _converted(kind, path)
    except _READING_ERRORS as error:
        reason = f"{public_text(error, files.root)}{_absent_weights(kind, files, model_filename)}"
        raise ModelLoadError(f"OpenVINO {RELEASE} does not read '{model_filename}'{_as(kind)}: {reason}") from error
    _check_stateless(model, model_filename)
    try:
        source = SourceModel(
            model,
            tuple(_names(kind, port, signature.inputs if signature else {}) for port in model.inputs),
            tuple(_names(kind, port, signature.outputs if signature else {}) for port in model.outputs),
        )
    except UnicodeDecodeError as error:
        raise ModelLoadError(f"'{model_filename}': the name of an input or output is not UTF-8: {error}") from error
    _check_names(source, kind, model_filename)
    return source


def graph_facts(core: ov.Core, files: ModelFiles, model_filename: str) -> ModelFacts:
    """The declarations of a file that OpenVINO itself reads: of all formats but ONNX.

    Raises:
        ModelLoadError: OpenVINO does not read it, or a tensor is of a type that cannot be served.
    """
    source = read_model(core, files, model_filename)
    kind = format_of(model_filename)
    try:
        graph = source.model.get_friendly_name()
    except UnicodeDecodeError as error:
        raise ModelLoadError(f"'{model_filename}': the name of the graph is not UTF-8: {error}") from error
    weights = f", weights in {weights_file(model_filename)}" if kind is ModelFormat.IR else ""
    return GraphFacts(
        inputs=tuple(_tensor("input", port, names, model_filename) for port, names in zip(source.model.inputs, source.inputs, strict=True)),
        outputs=tuple(
            _tensor("output", port, names, model_filename) for port, names in zip(source.model.outputs, source.outputs, strict=True)
        ),
        inexact=tuple(inexact_integers(source.model)),
        notes=(f"{kind.value}, graph '{graph}'{weights}",),
    )


def ports_by_name(side: str, ports: Sequence[PortNames], wanted: Iterable[str], model_filename: str) -> Mapping[str, int]:
    """The place of each of the `wanted` inputs or outputs among OpenVINO's `ports`.

    Raises:
        ModelLoadError: one is not there.
    """
    indices = {alias: index for index, port in enumerate(ports) for alias in port.aliases}
    indices |= {port.name: index for index, port in enumerate(ports)}
    missing = [name for name in wanted if name not in indices]
    if missing:
        raise ModelLoadError(
            f"'{model_filename}' declares {side} '{missing[0]}', OpenVINO {RELEASE} sees {', '.join(sorted(indices)) or 'none'}"
        )
    return {name: indices[name] for name in wanted}


def _converted(kind: ModelFormat, path: Path) -> ov.Model:
    """The model of the file at `path`, read by the front end of that format alone."""
    front_end = FrontEndManager().load_by_framework(_FRONT_ENDS[kind])
    return front_end.convert(front_end.load(str(path.parent if kind is ModelFormat.SAVED_MODEL else path)))


def _as(kind: ModelFormat) -> str:
    return f" as {kind.value}" if kind in _FRONT_ENDS else ""


def _absent_weights(kind: ModelFormat, files: ModelFiles, model_filename: str) -> str:
    """The end of an error about a Paddle model whose weights are missing; a model without weights has no such file."""
    weights = PurePosixPath(model_filename).with_suffix(".pdiparams").as_posix()
    return f"; the version folder has no '{weights}'" if kind is ModelFormat.PADDLE and weights not in files.sizes_bytes else ""


def _names(kind: ModelFormat, port: ov.Output, signature: Mapping[str, str]) -> PortNames:
    """The names of `port`.

    A SavedModel's front end names nodes by the signature, and a frozen graph's by their tensor, such as `x:0`, which clients call `x`. The
    tensors of a TensorFlow Lite file have names in its `signature`, if it has one. In other formats, a port has the first of its tensor's
    names, or, where that has none, its node's.
    """
    node = str(port.get_node().get_friendly_name())
    tensors = sorted(map(str, port.get_names()))
    if kind is ModelFormat.SAVED_MODEL:
        name = node
    elif kind is ModelFormat.FROZEN_GRAPH:
        name = node.removesuffix(_FIRST_OUTPUT)
    else:
        name = next((signature[each] for each in tensors if each in signature), tensors[0] if tensors else node)
    return PortNames(name, tuple(each for each in tensors if each != name))


def _check_names(source: SourceModel, kind: ModelFormat, model_filename: str) -> None:
    if not source.outputs:
        raise ModelLoadError(f"'{model_filename}' has no outputs")
    # An ONNX graph may list one tensor as an output twice.
    outputs = () if kind is ModelFormat.ONNX else source.outputs
    for side, ports in (("inputs", source.inputs), ("outputs", outputs)):
        names = [port.name for port in ports]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ModelLoadError(f"'{model_filename}' has two {side} of the name '{twice}'")


def _check_stateless(model: ov.Model, model_filename: str) -> None:
    """Rejects a model whose infer requests carry values from one run to the next: those of one client would reach another.

    Raises:
        ModelLoadError: it has ReadValue or Assign.
    """
    found = list(_stateful_nodes(model))
    if found:
        more = f" and {len(found) - _NAMED_NODES} more" if len(found) > _NAMED_NODES else ""
        raise ModelLoadError(
            f"'{model_filename}' keeps a state from one request to the next, which may be another client's: "
            f"{', '.join(found[:_NAMED_NODES])}{more}. "
            "Export it without a state, so that states are inputs and outputs (optimum-cli export openvino: --disable-stateful); "
            "config.pbtxt `sequence_batching { state ... }` then carries them for each sequence"
        )


def _stateful_nodes(model: ov.Model) -> Iterator[str]:
    """Names the stateful operators, such as `ReadValue 'past'`, also those in bodies of control flow."""
    for node in model.get_ordered_ops():
        if node.get_type_name() in ("ReadValue", "Assign"):
            yield f"{node.get_type_name()} '{node.get_friendly_name()}'"
        for body in bodies_of(node):
            yield from _stateful_nodes(body)


def _tensor(side: str, port: ov.Output, names: PortNames, model_filename: str) -> FileTensor:
    kind = port.get_element_type().get_type_name()
    datatype = SERVED.get(kind)
    if datatype is None:
        raise ModelLoadError(
            f"'{model_filename}': {side} '{names.name}' has element type {kind}, which cannot be served; served types: "
            f"{', '.join(sorted(served.value for served in SERVED.values()))}"
        )
    shape = port.get_partial_shape()
    dims = None if shape.rank.is_dynamic else tuple(size.get_length() if size.is_static else VARIABLE for size in shape)
    return FileTensor(names.name, datatype, dims, aliases=names.aliases)


def _check_saved_model(files: ModelFiles, model_filename: str) -> None:
    """Raises:
    ModelLoadError: the index of its variables is damaged, or their values are missing.
    """
    folder = PurePosixPath(model_filename).parent / "variables"
    index = (folder / "variables.index").as_posix()
    values = (folder / "variables.data-").as_posix()
    has_values = any(name.startswith(values) for name in files.sizes_bytes)
    if index not in files.sizes_bytes:
        if has_values:
            raise ModelLoadError(f"'{model_filename}' needs the index of its variables, '{index}', which the version folder does not have")
        return  # a model without variables
    if not has_values:
        raise ModelLoadError(f"'{model_filename}' needs its variables in '{values}...', which the version folder does not have")
    if files.sizes_bytes[index] > MAX_INDEX_BYTES:
        raise ModelLoadError(f"'{index}' has {files.sizes_bytes[index]} bytes; an index of variables has at most {MAX_INDEX_BYTES}")
    try:
        check_index(files.read(index))
    except DamagedIndex as error:
        raise ModelLoadError(f"'{index}', the index of the variables of '{model_filename}', is damaged: {error}") from error


def _check_tflite(files: ModelFiles, model_filename: str) -> SignatureNames:
    """Reads the names of the signature.

    Raises:
        ModelLoadError: the file is damaged.
    """
    try:
        return signature_names(files.path(model_filename))
    except DamagedTflite as error:
        raise ModelLoadError(f"'{model_filename}' is not a readable TensorFlow Lite file: {error}") from error


def _check_paddle(_files: ModelFiles, model_filename: str) -> None:
    """Raises:
    ModelLoadError: it is of the form that OpenVINO does not read.
    """
    if PurePosixPath(model_filename).suffix == ".json":
        raise ModelLoadError(
            f"'{model_filename}' is of the form that PaddlePaddle 3 writes by default (PIR), which OpenVINO {RELEASE} does not read: "
            "set the environment variable FLAGS_enable_pir_api=0 and save the model again, which writes a .pdmodel and a .pdiparams file"
        )


_CHECKS: Mapping[ModelFormat, Callable[[ModelFiles, str], SignatureNames | None]] = {
    ModelFormat.IR: check_ir,
    ModelFormat.SAVED_MODEL: _check_saved_model,
    ModelFormat.TFLITE: _check_tflite,
    ModelFormat.PADDLE: _check_paddle,
}
