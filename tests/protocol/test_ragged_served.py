"""Requests of different lengths in one batch of an ONNX model, through a running server."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from onnx import TensorProto, helper

from tests.fakes.onnx_models import model, value
from tests.fakes.server_process import running_server

CONFIG = """
max_batch_size: 8
dynamic_batching { preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 20000000 }
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
output [ { name: "size" data_type: TYPE_INT32 dims: [ 2 ] }, { name: "doubled" data_type: TYPE_FP32 dims: [ -1 ] } ]
batch_input [ { kind: BATCH_ELEMENT_COUNT target_name: "counts" data_type: TYPE_INT32 source_input: "x" } ]
batch_output [ { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "doubled" source_input: "x" } ]
"""


def ragged() -> bytes:
    """`doubled` = 2 `x`, all requests in one vector; `size` = for each request [its elements, all elements]."""
    minus = helper.make_tensor("minus", TensorProto.INT64, [2], [-1, 1])
    nodes = [
        helper.make_node("Add", ["x", "x"], ["doubled"]),
        helper.make_node("Reshape", ["counts", "minus"], ["own"]),
        helper.make_node("ReduceSum", ["own"], ["sum"], keepdims=1),
        helper.make_node("Shape", ["own"], ["shape"]),
        helper.make_node("Expand", ["sum", "shape"], ["all"]),
        helper.make_node("Concat", ["own", "all"], ["size"], axis=1),
    ]
    inputs = [value("x", ("elements",)), value("counts", ("requests",), TensorProto.INT32)]
    outputs = [value("size", ("requests", 2), TensorProto.INT32), value("doubled", ("elements",))]
    return model(nodes, inputs, outputs, [minus]).SerializeToString()


def test_requests_of_different_lengths_share_a_batch(tmp_path: Path):
    version = tmp_path / "models" / "ragged" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(ragged())
    (version.parent / "config.pbtxt").write_text(CONFIG)
    rows = [[1.0, 2.0, 3.0], [4.0], [5.0, 6.0]]
    with running_server(f"--model_base_path={tmp_path / 'models'}", at=tmp_path / "server") as server, ThreadPoolExecutor(3) as threads:
        bodies = [{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, len(row)], "data": row}]} for row in rows]
        # The batch goes when it has three rows, and would wait twenty seconds for them.
        answers = list(threads.map(lambda body: server.json("/v2/models/ragged/infer", body), bodies))
    for row, answer in zip(rows, answers, strict=True):
        outputs = {output["name"]: output for output in answer["outputs"]}
        assert outputs["doubled"]["data"] == [2 * element for element in row]
        assert outputs["doubled"]["shape"] == [1, len(row)]
        assert outputs["size"]["data"] == [len(row), 6]
