"""A server whose allocator fills all memory with a mark, which must never reach a client.

glibc fills what it hands out and what is given back (`MALLOC_PERTURB_`), and Python takes all its memory from there (`PYTHONMALLOC`): so
the memory of numpy, ONNX Runtime and OpenVINO is marked alike.
"""

import importlib.util
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker_client import Client, TypedArray, connect
from tests.conformance.unusual_graphs import MOST_ROWS, UNUSUAL_GRAPHS, UnusualGraph, raw_outputs
from tests.fakes.server_process import running_server

#: glibc writes this byte over what is freed, and its complement over what is allocated.
FREED = 0xA5
MARKED = {"MALLOC_PERTURB_": str(FREED), "PYTHONMALLOC": "malloc"}
#: What another client sends before.
SECRET = 4242.0
#: Graphs that this backend does not load, or has no answer for; test_unusual_graphs.py holds their reasons.
NOT_ON_OPENVINO = {
    "mask of a dropout", "dropout without a mask", "element of a sequence", "loop that hands its state on", "value of an optional",
    "BYTES input is output",
}  # fmt: skip

CONFIG = """
backend: "{backend}"
max_batch_size: {most}
dynamic_batching {{ max_queue_delay_microseconds: 100 }}
"""


def write_models(repository: Path, backend: str) -> dict[str, UnusualGraph]:
    """One model for each graph; returns the graphs by the names of their models."""
    graphs = [graph for graph in UNUSUAL_GRAPHS.values() if _is_served(graph, backend)]
    models = {f"graph_{number}": graph for number, graph in enumerate(graphs)}
    for name, graph in models.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").write_bytes(graph.proto.SerializeToString())
        config = CONFIG.format(backend=backend, most=graph.signature.max_batch_size)
        if not graph.signature.is_batched:
            config = config.partition("dynamic_batching")[0]
        (repository / name / "config.pbtxt").write_text(config)
    return models


def _is_served(graph: UnusualGraph, backend: str) -> bool:
    """Configurations allow no dimension of size 0."""
    if any(0 in spec.dims for spec in (*graph.signature.inputs, *graph.signature.outputs)):
        return False
    return backend != "openvino" or graph.name not in NOT_ON_OPENVINO


def check_answers(client: Client, name: str, graph: UnusualGraph) -> None:
    for seed, rows in enumerate((1, 3, MOST_ROWS, 1) if graph.signature.is_batched else (1, 1)):
        inputs = graph.inputs(rows, seed)
        # Clients see a scalar as a tensor of one element.
        typed = {spec.name: TypedArray(np.atleast_1d(inputs[spec.name]), spec.datatype.value) for spec in graph.signature.inputs}
        found, expected = client.infer(name, typed), raw_outputs(graph, inputs)
        for spec in graph.signature.outputs:
            array: Any = np.asarray(found[spec.name])
            wanted: Any = np.atleast_1d(expected[spec.name])
            assert array.shape == wanted.shape
            if array.dtype.kind == "f":
                np.testing.assert_allclose(array, wanted, rtol=1e-4, atol=1e-6, err_msg=f"{graph.name}: {spec.name}")
            else:
                assert array.tolist() == wanted.tolist(), f"{graph.name}: {spec.name}"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc marks memory by MALLOC_PERTURB_")
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_response_contains_no_memory_of_the_server_or_of_another_client(backend: str, tmp_path: Path) -> None:
    if backend == "openvino" and importlib.util.find_spec("openvino") is None:
        pytest.skip("the package 'openvino', an extra, is not installed")
    models = write_models(tmp_path / "models", backend)
    other = next(name for name, graph in models.items() if graph.name == "identity twice")
    with running_server(f"--model-repository={tmp_path / 'models'}", at=tmp_path / "server", env=MARKED) as server:
        for address in (f"http://{server.http}", f"grpc://{server.grpc}"):
            with connect(address) as another, connect(address) as client:
                for rows in (1, 2, MOST_ROWS) * 10:
                    another.infer(other, {"x": np.full((rows, 4), SECRET, np.float32)})
                for name, graph in models.items():
                    check_answers(client, name, graph)
