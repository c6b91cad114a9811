"""Every way to serve an ONNX graph computes as ONNX Runtime does, or refuses the graph with a reason.

All memory that numpy hands out uninitialised is filled with a canary here, so that an answer that holds such memory is a wrong answer.
"""

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker.compiler.cli
from stoker.backends.api.backend import Arrays, Instance, LoadRequest
from stoker.backends.api.batch import Array, BatchItem, Outcome, processor_for
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.errors import ModelLoadError, ServingError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.registry import BackendRegistry
from stoker.backends.testing.samples import version_files
from tests.conformance.unusual_graphs import MOST_ROWS, UNUSUAL_GRAPHS, UnusualGraph, raw_outputs

REGISTRY = BackendRegistry()
CANARY = 0xA5


class Rejected(Exception):
    """The graph is not served this way; the text is the one that users get."""


Serve = Callable[[UnusualGraph, Path], Instance]


def load(backend: str, filename: str, graph: UnusualGraph, files: ModelFiles) -> Instance:
    request = LoadRequest(model_name="unusual", version=1, files=files, model_filename=filename, signature=graph.signature)
    try:
        return REGISTRY.get(backend).load(request)
    except ModelLoadError as error:
        raise Rejected(str(error)) from error


def from_file(backend: str) -> Serve:
    def serve(graph: UnusualGraph, folder: Path) -> Instance:
        return load(backend, "model.onnx", graph, version_files(folder, {"model.onnx": graph.proto.SerializeToString()}))

    return serve


def compiled(target: str, backend: str, filename: str, capsys: pytest.CaptureFixture[str]) -> Serve:
    def serve(graph: UnusualGraph, folder: Path) -> Instance:
        source = folder / "source.onnx"
        source.write_bytes(graph.proto.SerializeToString())
        repository = folder / "repository"
        words = ["--target", target, "-i", str(source), "--output_dir", str(folder), "--disable_compilation_progress_bar"]
        batch = ["--batch_size", str(MOST_ROWS), "--batch_axis", "0"] if graph.signature.is_batched else []
        code = stoker.compiler.cli.main([*words, *batch, "--model_repository", str(repository), "--model_name", "unusual"])
        said = capsys.readouterr().err
        if code:
            raise Rejected(said)
        version = repository / "unusual" / "1"
        return load(backend, filename, graph, ModelFiles(version, {path.name: path.stat().st_size for path in version.iterdir()}))

    return serve


#: What each way says of the graphs that it does not serve, by the name of the graph.
_IPU_NAMES = "two streams are called 'x'; rename one of the tensors"
_NO_BF16_NO_TEXT = {"BF16 input is output": "BFLOAT16", "input is output beside bfloat16": "BFLOAT16", "BYTES input is output": "STRING"}
_NO_ELEMENTS = r"has the shape \[.*\b0\b.*\]: no request can carry it"
_RENAMED = "declares input 'x', OpenVINO .* sees y"
REFUSALS: dict[str, dict[str, str]] = {
    "onnxruntime": {},
    "openvino": {
        "mask of a dropout": _RENAMED,
        "dropout without a mask": _RENAMED,
        "element of a sequence": _RENAMED,
        "loop that hands its state on": "OpenVINO .* does not read 'model.onnx'",
        "value of an optional": "No conversion rule found for operations: Optional-18, OptionalGetElement-18",
        "BYTES input is output": "OpenVINO serves no strings; backend onnxruntime does",
        "initializer of no elements": r"output 'c' came with shape \[\], the signature says \[0, 4\]",
    },
    "cpu": {
        "no elements, input is output": _NO_ELEMENTS,
        "slice of no elements": _NO_ELEMENTS,
        "initializer of no elements": _NO_ELEMENTS,
    },
    "gcu": {
        **_NO_BF16_NO_TEXT,
        "output listed twice": "there are two of output 'z'",
        "first output left out": "must be of one size",
        "branch that an input chooses": "control flow that depends on values is not compiled",
        "branch that is an initializer": "control flow that depends on values is not compiled",
        "loop that hands its state on": "control flow that depends on values is not compiled",
        "loop of no turns": "control flow that depends on values is not compiled",
        "value of an optional": "the device has no such operator",
        "INT8 input is output": "has no int8 arithmetic",
        "FP64 input is output": "TYPE_FP64 in the configuration and TYPE_FP32 in the model file",
        "no elements, input is output": _NO_ELEMENTS,
        "slice of no elements": _NO_ELEMENTS,
        "initializer of no elements": "must be of one size",
        "scalar output": "must be of one size",
        "scalar input is output": "must be of one size",
        "size that follows from the values": "the size of its output depends on values",
    },
    "ipu": {
        **{
            name: _IPU_NAMES
            for name, graph in UNUSUAL_GRAPHS.items()
            if {spec.name for spec in graph.signature.inputs} & {spec.name for spec in graph.signature.outputs}
        },
        **_NO_BF16_NO_TEXT,
        "output listed twice": "two streams are called 'z'",
        "value of an optional": "has neither strings nor sequences nor optional values",
        "slice of no elements": _NO_ELEMENTS,
        "initializer of no elements": _NO_ELEMENTS,
        "size that follows from the values": "the size of its output depends on values",
    },
}


@pytest.fixture(autouse=True)
def marked_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """`np.empty` and `np.empty_like` return memory full of the canary."""

    def filled(allocate: Callable[..., Array]) -> Callable[..., Array]:
        def allocated(*args: Any, **options: Any) -> Array:
            array = allocate(*args, **options)
            if array.dtype != object and array.size:
                array.reshape(-1).view(np.uint8)[...] = CANARY
            return array

        return allocated

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(np, name, filled(getattr(np, name)))


@pytest.fixture
def ways(capsys: pytest.CaptureFixture[str]) -> dict[str, Serve]:
    return {
        "onnxruntime": from_file("onnxruntime"),
        "openvino": from_file("openvino"),
        "cpu": compiled("cpu", "onnxruntime", "model.onnx", capsys),
        "gcu": compiled("gcu", "topsinference", "model.exec", capsys),
        "ipu": compiled("ipu", "poplar", "executable.popef", capsys),
    }


def requests(graph: UnusualGraph) -> Iterator[list[BatchItem]]:
    """Batches: alone and full, together and short of full, for some of the outputs only, and the first again."""
    names = tuple(spec.name for spec in graph.signature.outputs)
    sizes: Sequence[Sequence[int]] = ((1,), (MOST_ROWS,), (1, 2), (3,), (1,)) if graph.signature.is_batched else ((1,), (1,), (1,))
    for seed, batch in enumerate(sizes):
        for wanted in dict.fromkeys((names, names[:1])):
            yield [BatchItem(graph.inputs(rows, 10 * seed + place), rows, wanted) for place, rows in enumerate(batch)]


def check(found: Outcome, graph: UnusualGraph, item: BatchItem) -> None:
    if isinstance(found, ServingError):
        raise Rejected(found.message)
    expected: Mapping[str, Any] = raw_outputs(graph, item.inputs)
    assert set(found) == set(item.output_names)
    array: Any
    for name, array in found.items():
        assert array.dtype == expected[name].dtype
        assert array.shape == expected[name].shape
        if array.dtype.kind == "f":
            np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)
        else:
            assert array.tolist() == expected[name].tolist(), name


def serve_and_check(serve: Serve, graph: UnusualGraph, folder: Path) -> None:
    instance = serve(graph, folder)
    try:
        unit = processor_for(instance, graph.signature, SystemClock())
        answered = []
        for items in requests(graph):
            given = [{name: array.copy() for name, array in item.inputs.items()} for item in items]
            outcomes = unit.process(items).outcomes
            answered += [
                (outcome, dataclasses.replace(item, inputs=kept)) for outcome, item, kept in zip(outcomes, items, given, strict=True)
            ]
            # What arrived is the server's to use again at once.
            for item in items:
                for array in item.inputs.values():
                    array[...] = b"\xa5" if array.dtype == object else 1
        # Only now: an answer must still be what it was when later batches have run.
        for outcome, item in answered:
            check(outcome, graph, item)
    finally:
        instance.close()


@pytest.mark.parametrize("name", UNUSUAL_GRAPHS)
@pytest.mark.parametrize("way", REFUSALS)
def test_unusual_graph_equals_onnx_runtime_or_is_refused(way: str, name: str, ways: dict[str, Serve], tmp_path: Path) -> None:
    if way == "openvino" and importlib.util.find_spec("openvino") is None:
        pytest.skip("the package 'openvino', an extra, is not installed")
    graph, reason = UNUSUAL_GRAPHS[name], REFUSALS[way].get(name)
    if reason is None:
        serve_and_check(ways[way], graph, tmp_path)
        return
    with pytest.raises(Rejected, match=reason) as caught:
        serve_and_check(ways[way], graph, tmp_path)
    assert str(tmp_path) not in str(caught.value)


class Forgetful(Instance):
    """Never writes its output."""

    def execute(self, inputs: Arrays, output_names: Sequence[str]) -> Arrays:
        return {name: np.empty_like(inputs["x"]) for name in output_names}


def test_unwritten_memory_is_detected(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        serve_and_check(lambda graph, folder: Forgetful(), UNUSUAL_GRAPHS["input is output"], tmp_path)
