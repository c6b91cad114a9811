"""Uses ONNX Runtime in the compiler: for its graph optimisations, and to run the source model on numpy arrays.

Only the rewrites that stay within ONNX's operators are taken, so that what is written is read by every runtime. Further levels make
operators of their own, for the processor they run on; the server has them made when it loads the file.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from stoker.backends.onnx_files.runtime import ORT_ERRORS, public_text
from stoker.compiler.culprit import culprit
from stoker.compiler.errors import CompileError
from stoker.compiler.precision.number_types import numpy_feeds, with_numpy_types

#: Above this a model does not fit into one protobuf message, in which it goes to the runtime and comes back.
MAX_MODEL_BYTES = (1 << 31) - 1


def optimised(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` after ONNX Runtime's basic rewrites.

    Raises:
        CompileError: ONNX Runtime rejects it, or it is too large.
    """
    check_size(model)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        options.optimized_model_filepath = str(path)
        try:
            ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except ORT_ERRORS as error:
            node = culprit(model, _is_rejected)
            where = f" because of {node}" if node else ""
            raise CompileError(f"ONNX Runtime cannot load the converted model{where}: {public_text(error)}") from error
        return _without_idle_opsets(onnx.load(path))


def _is_rejected(model: onnx.ModelProto) -> bool:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except ORT_ERRORS:
        return True
    return False


def check_size(model: onnx.ModelProto) -> None:
    """Raises:
    CompileError: `model` does not fit into one message.
    """
    if model.ByteSize() > MAX_MODEL_BYTES:
        raise CompileError(f"the model has {model.ByteSize():,} bytes; target 'cpu' makes files of up to {MAX_MODEL_BYTES:,}")


def _without_idle_opsets(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` without the operator sets that ONNX Runtime declares and no node is of: a runtime that lacks one would reject the file."""
    used = {"", "ai.onnx"} | {node.domain for graph in _graphs(model.graph) for node in graph.node}
    kept = [each for each in model.opset_import if each.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    return model


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """`graph` and all below it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else ())):
                yield from _graphs(inner)


Run = Callable[[Mapping[str, NDArray[Any]]], Mapping[str, NDArray[Any]]]


def run_of(model: onnx.ModelProto, names: Sequence[str], *, threads: int, what: str = "the source model") -> Run:
    """Returns a function that runs `model` and returns the outputs `names`, BFLOAT16 as float32.

    Args:
        model: Any dimensions may be open.
        names: Of its outputs.
        threads: For one operator.
        what: Names the model in messages.

    Raises:
        CompileError: ONNX Runtime rejects the model. What is returned raises it where the model does not run.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(with_numpy_types(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    except ORT_ERRORS as error:
        raise CompileError(f"{what} cannot be run to be compared with: {public_text(error)}") from error

    def run(batch: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        try:
            return dict(zip(names, session.run(list(names), numpy_feeds(batch)), strict=True))
        except ORT_ERRORS as error:
            raise CompileError(f"{what} does not run: {public_text(error)}") from error

    return run
