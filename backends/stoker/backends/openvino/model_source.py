"""A version's model file as OpenVINO's `Model`, and what it declares.

An ONNX file is inspected by our own reader, so that neither OpenVINO nor its weights are touched before it is loaded, and what is no ONNX
file never reaches the guessing of OpenVINO's other front ends. An IR file (.xml with its .bin) is read by OpenVINO itself.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NoReturn
from xml.parsers import expat

import openvino as ov

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import VARIABLE, FileTensor, ModelFacts
from stoker.backends.openvino.integers import bodies_of, inexact_integers
from stoker.backends.openvino.runtime import OPENVINO_ERRORS, SERVED, IrFacts, is_ir, public_text

_CHUNK_BYTES = 16 * 1024
#: Characters of a codec's complaint, which repeats the encoding's name.
_SHOWN = 120


class UnreadableXml(Exception):
    """The file has no root that could be read; the text says why."""


class _Found(Exception):
    """Leaves the parser: the root was met."""


def read_root(path: Path) -> tuple[str, Mapping[str, str]]:
    """The name and the attributes of the root.

    Raises:
        UnreadableXml: it is empty, is not XML, is in an encoding that cannot be read (expat reads UTF-8, UTF-16 and those of one byte a
            character), or declares a document type: that is where entities are defined, of which a few lines unfold to gigabytes, and no
            format that is read here has one.
    """
    found: list[tuple[str, Mapping[str, str]]] = []

    def root_begins(name: str, attributes: dict[str, str]) -> NoReturn:
        found.append((name, attributes))
        raise _Found

    parser = expat.ParserCreate()
    parser.StartElementHandler = root_begins
    parser.StartDoctypeDeclHandler = _reject_document_type
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                parser.Parse(chunk)
        parser.Parse(b"", True)
    except _Found:
        return found[0]
    except expat.ExpatError as error:
        raise UnreadableXml(str(error)) from error
    except (LookupError, ValueError) as error:  # what Python's codecs say of an encoding that expat has asked them for
        raise UnreadableXml(f"its encoding cannot be read: {str(error)[:_SHOWN]}") from error
    raise UnreadableXml("it has no root element")


def _reject_document_type(name: str, system_id: str | None, public_id: str | None, has_internal_subset: bool) -> NoReturn:
    raise UnreadableXml(f"it declares a document type, '{name[:80]}', and may have none")


#: Such as 2026.4.1, for messages.
RELEASE = ov.__version__.partition("-")[0]
#: Versions of the IR format that this code was written against; OpenVINO reads no others.
_IR_VERSIONS = ("10", "11")
_ROOT = "net"
#: Bytes of an .xml file: the graph alone, without weights. The largest known have some tens of megabytes.
MAX_XML_BYTES = 512 * 1024 * 1024
#: Nodes that a rejection names.
_NAMED_NODES = 4


def read_model(core: ov.Core, files: ModelFiles, model_filename: str) -> ov.Model:
    """Reads the graph, and maps its weights.

    Raises:
        ModelLoadError: OpenVINO does not read the file, or the model keeps a state.
    """
    path = files.path(model_filename)
    if is_ir(model_filename):
        _check_ir(files, model_filename)
    try:
        model = core.read_model(str(path))
    except OPENVINO_ERRORS as error:
        raise ModelLoadError(f"OpenVINO {RELEASE} does not read '{model_filename}': {public_text(error, files.root)}") from error
    _check_stateless(model, model_filename)
    return model


def ir_facts(core: ov.Core, files: ModelFiles, model_filename: str) -> ModelFacts:
    """The declarations of an IR file.

    Raises:
        ModelLoadError: OpenVINO does not read it, or a tensor is of a type that cannot be served.
    """
    model = read_model(core, files, model_filename)
    try:
        return IrFacts(
            inputs=tuple(_tensor("input", port, model_filename) for port in model.inputs),
            outputs=tuple(_tensor("output", port, model_filename) for port in model.outputs),
            inexact=tuple(inexact_integers(model)),
            notes=(f"OpenVINO IR, graph '{model.get_friendly_name()}', weights in {_weights_file(model_filename)}",),
        )
    except UnicodeDecodeError as error:
        raise ModelLoadError(f"'{model_filename}': the name of the graph, or of an input or output, is not UTF-8: {error}") from error


def ports_by_name(side: str, ports: Iterable[ov.Output], wanted: Iterable[str], model_filename: str) -> Mapping[str, int]:
    """The place of each of the `wanted` inputs or outputs among OpenVINO's `ports`.

    Raises:
        ModelLoadError: one is not there.
    """
    indices = {name: index for index, port in enumerate(ports) for name in (*port.get_names(), port_name(port))}
    missing = [name for name in wanted if name not in indices]
    if missing:
        raise ModelLoadError(
            f"'{model_filename}' declares {side} '{missing[0]}', OpenVINO {RELEASE} sees {', '.join(sorted(indices)) or 'none'}"
        )
    return {name: indices[name] for name in wanted}


def port_name(port: ov.Output) -> str:
    """The name an input or output is served by: the first of its tensor's names, or, where that has none, its node's."""
    return min(port.get_names(), default=str(port.get_node().get_friendly_name()))


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


def _tensor(side: str, port: ov.Output, model_filename: str) -> FileTensor:
    kind = port.get_element_type().get_type_name()
    datatype = SERVED.get(kind)
    name = port_name(port)
    if datatype is None:
        raise ModelLoadError(
            f"'{model_filename}': {side} '{name}' has element type {kind}, which cannot be served; served types: "
            f"{', '.join(sorted(served.value for served in SERVED.values()))}"
        )
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        return FileTensor(name, datatype, None)
    return FileTensor(name, datatype, tuple(size.get_length() if size.is_static else VARIABLE for size in shape))


def _weights_file(model_filename: str) -> str:
    return PurePosixPath(model_filename).with_suffix(".bin").as_posix()


def _check_ir(files: ModelFiles, model_filename: str) -> None:
    """Rejects what OpenVINO would take for some other format and try all its front ends on.

    Raises:
        ModelLoadError: it is no IR of a version that is read, or its .bin file is missing.
    """
    path = files.path(model_filename)
    if files.sizes_bytes[PurePosixPath(model_filename).as_posix()] > MAX_XML_BYTES:
        raise ModelLoadError(f"'{model_filename}' is larger than {MAX_XML_BYTES} bytes: an IR file holds a graph, without weights")
    try:
        root, attributes = read_root(path)
    except UnreadableXml as error:
        raise ModelLoadError(f"'{model_filename}' is not a readable OpenVINO IR file: {error}") from error
    version = attributes.get("version", "none")
    if root != _ROOT or version not in _IR_VERSIONS:
        raise ModelLoadError(
            f"'{model_filename}' is not OpenVINO IR of version {' or '.join(_IR_VERSIONS)}: "
            f"its root is <{root[:80]}> of version {version[:40]}"
        )
    weights = _weights_file(model_filename)
    if weights not in files.sizes_bytes:
        held = ", ".join(sorted(files.sizes_bytes)[:10])
        raise ModelLoadError(
            f"'{model_filename}' needs its weights in '{weights}', which the version folder does not have; it holds: {held}"
        )
