"""Reads the source model: an ONNX file with its external data, or a model of TensorFlow or Keras, converted by tf2onnx."""

import dataclasses
import importlib.util
import logging
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.passes.registry import INTERNAL_OPSET

logger = logging.getLogger(__name__)

#: The newest IR version that all supported ONNX Runtime versions read; newer models get this version if their content allows it.
READABLE_IR_VERSION = 10
#: Of files that Keras writes.
KERAS_SUFFIXES = (".keras", ".h5", ".hdf5")
_EXPORT = str(Path(__file__).with_name("tensorflow_export.py"))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorflowOptions:
    """Arguments of tf2onnx, as on its command line."""

    saved_model: bool = False
    signature_def: str | None = None
    tag: str | None = None
    inputs: str | None = None
    outputs: str | None = None
    opset: int = 11
    inputs_as_nchw: str | None = None
    outputs_as_nchw: str | None = None


def read_onnx(path: str | Path) -> onnx.ModelProto:
    """Reads the model in file `path` with all its weights, and sets an IR version that ONNX Runtime reads.

    Raises:
        CompileError: there is no such file, or it is no valid ONNX model; the text says why.
    """
    path = Path(path)
    try:
        model = onnx.load(path)
    except FileNotFoundError as error:
        missing = f"there is no file {path}" if not path.exists() else f"{path}: its external data is missing: {error}"
        raise CompileError(f"input_model: {missing}") from None
    except IsADirectoryError:
        raise CompileError(f"input_model: {path} is a folder; a SavedModel needs --framework tensorflow") from None
    except (DecodeError, UnicodeDecodeError):
        raise CompileError(f"input_model: {path} is no ONNX file: it cannot be parsed") from None
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise CompileError(f"input_model: {path} cannot be read: {error}") from None
    if not model.graph.node and not model.graph.output:
        raise CompileError(f"input_model: {path} is no ONNX model: it has neither nodes nor outputs")
    if model.ir_version > READABLE_IR_VERSION:
        logger.info("%s: IR version %d is stamped down to %d", path, model.ir_version, READABLE_IR_VERSION)
        model.ir_version = READABLE_IR_VERSION
    return model


def checked(model: onnx.ModelProto, origin: str) -> onnx.ModelProto:
    """Checks `model` with ONNX's checker and returns it, or a copy with an IR version that ONNX Runtime reads.

    Raises:
        CompileError: the model is invalid; `origin` says where it came from.
    """
    imports_default = any(each.domain in ("", "ai.onnx") for each in model.opset_import)
    if not imports_default and (not model.opset_import or any(node.domain in ("", "ai.onnx") for node in model.graph.node)):
        raise CompileError(f"{origin} is no valid ONNX model: it does not say which opset it uses")
    if model.ir_version > READABLE_IR_VERSION or not imports_default:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        copy.ir_version = min(model.ir_version, READABLE_IR_VERSION)
        if not imports_default:  # all nodes are of other domains, and passes may add some of the default domain
            copy.opset_import.append(onnx.helper.make_opsetid("", INTERNAL_OPSET))
        model = copy
    unknown = _unknown_operators(model)
    if unknown:
        listed = "\n".join(f"  {each}" for each in unknown)
        raise CompileError(
            f"{origin} is no valid ONNX model: {len(unknown)} node(s) are of operators that its opset does not have:\n{listed}"
        )
    try:
        # A model above protobuf's size limit can be checked only as a file; the passes check its structure.
        if model.ByteSize() < onnx.checker.MAXIMUM_PROTOBUF:
            onnx.checker.check_model(_with_output_shapes(model))
    except onnx.checker.ValidationError as error:
        raise CompileError(f"{origin} is no valid ONNX model: {' '.join(str(error).split())}") from None
    return model


def _unknown_operators(model: onnx.ModelProto) -> list[str]:
    """Returns all nodes of the default domain that ONNX does not know (ONNX's checker stops at the first)."""
    opset = next(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    if opset > onnx.defs.onnx_opset_version():
        return []  # operators newer than this onnx package are detected by the opset number
    functions = {each.name for each in model.functions if each.domain in ("", "ai.onnx")}
    names = (function.node for function in model.functions)
    return [
        f"{node.op_type} (node '{node.name or next(iter(node.output), '')}'): opset {opset} has no such operator"
        for nodes in (model.graph.node, *names)
        for node in _all_nodes(nodes)
        if node.domain in ("", "ai.onnx") and node.op_type not in functions and not _is_known(node.op_type, opset)
    ]


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Returns all nodes, including those of sub-graphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _all_nodes(graph.node)


def _is_known(op_type: str, opset: int) -> bool:
    try:
        return not onnx.defs.get_schema(op_type, opset, "").deprecated
    except onnx.defs.SchemaError:
        return False


def _with_output_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns `model`, or a copy in which every output has a shape: ONNX's checker requires one, exporters and runtimes do not."""
    if all(value.type.tensor_type.HasField("shape") for value in model.graph.output if value.type.HasField("tensor_type")):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in copy.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()
    return copy


def read_tensorflow(path: str | Path, options: TensorflowOptions) -> onnx.ModelProto:
    """Converts the TensorFlow, TensorFlow Lite or Keras model at `path` with tf2onnx in a subprocess, to keep TensorFlow out of this one.

    Raises:
        CompileError: a package is not installed, there is no such model, or tf2onnx failed; the text has its last lines.
    """
    path = Path(path)
    _check_source(path, ("tf2onnx", "tensorflow"))
    if path.suffix.lower() in KERAS_SUFFIXES:
        return _read_keras(path, options)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "model.onnx"
        _run("tf2onnx", ["-m", "tf2onnx.convert", *_arguments(path, options), "--output", str(target)], path, target)
        return read_onnx(target)


def export_keras(path: Path, target: Path) -> None:
    """Writes the Keras model at `path` as SavedModel to the folder `target`, in a subprocess.

    Raises:
        CompileError: as `read_tensorflow`.
    """
    _check_source(path, ("keras", "tensorflow"))
    _run("Keras", [_EXPORT, "saved_model", str(path), str(target), "0"], path, target)


def export_tflite(path: Path, target: Path) -> None:
    """Writes the SavedModel at `path` as the TensorFlow Lite file `target`, in a subprocess.

    Raises:
        CompileError: as `read_tensorflow`.
    """
    _check_source(path, ("tensorflow",))
    _run("TensorFlow", [_EXPORT, "tflite", str(path), str(target), "0"], path, target)


def _read_keras(path: Path, options: TensorflowOptions) -> onnx.ModelProto:
    _check_source(path, ("keras",))
    given = [name for name, value in dataclasses.asdict(options).items() if name != "opset" and value]
    if given:
        raise OptionError(f"{', '.join(given)}: a Keras model has its own inputs and outputs; only opset concerns it")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "model.onnx"
        _run("tf2onnx", [_EXPORT, "onnx", str(path), str(target), str(options.opset)], path, target)
        return read_onnx(target)


def _check_source(path: Path, packages: Iterable[str]) -> None:
    """Raises:
    CompileError: there is no such model, or a package that converts it is not installed.
    """
    if not path.exists():
        raise CompileError(f"input_model: there is no {path}")
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise CompileError(
            f"{path} needs the package{'s' if len(missing) > 1 else ''} {' and '.join(missing)}, not installed here: "
            f"pip install {' '.join(missing)}, or convert the model to ONNX elsewhere and give the ONNX file"
        )


def _run(tool: str, words: Iterable[str], path: Path, target: Path) -> None:
    """Runs Python with the arguments `words`, for which `tool` writes `target` from `path`.

    Raises:
        CompileError: it fails.
    """
    # An argument list without a shell: names are not interpreted.
    finished = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)  # noqa: S603
    if finished.returncode != 0 or not target.exists():
        reason = " / ".join(line.strip() for line in finished.stderr.splitlines()[-5:] if line.strip())
        raise CompileError(f"{tool} could not convert {path}: {reason or f'it ended with code {finished.returncode}'}")


def _arguments(path: Path, options: TensorflowOptions) -> list[str]:
    is_saved_model = options.saved_model or path.is_dir()
    kind = "--saved-model" if is_saved_model else "--tflite" if path.suffix.lower() == ".tflite" else "--graphdef"
    words = [kind, str(path), "--opset", str(options.opset)]
    for name in ("signature_def", "tag", "inputs", "outputs", "inputs_as_nchw", "outputs_as_nchw"):
        value = getattr(options, name)
        if value is not None:
            spelled = name if name == "signature_def" else name.replace("_", "-")
            words += [f"--{spelled}", value]
    return words
