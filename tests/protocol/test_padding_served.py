"""Requests of different lengths that share a padded batch, through a running server with an ONNX model that honours its mask."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from onnx import TensorProto, helper

from tests.fakes.onnx_models import model, value
from tests.fakes.server_process import running_server

CONFIG = """
max_batch_size: 8
dynamic_batching { preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 20000000 }
input [ { name: "ids" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "mask" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "mean" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "doubled" data_type: TYPE_FP32 dims: [ -1 ] } ]
parameters { key: "pad_buckets" value { string_value: "ids=4,8" } }
parameters { key: "pad_value" value { string_value: "99" } }
parameters { key: "pad_mask_input" value { string_value: "mask" } }
parameters { key: "pad_crop_outputs" value { string_value: "doubled" } }
"""


def encoder() -> bytes:
    """`mean` = the mean of the masked `ids`, `doubled` = 2 `ids`."""
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [1])
    nodes = [
        helper.make_node("Mul", ["ids", "mask"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "axis"], ["sum"], keepdims=1),
        helper.make_node("ReduceSum", ["mask", "axis"], ["count"], keepdims=1),
        helper.make_node("Div", ["sum", "count"], ["mean"]),
        helper.make_node("Add", ["ids", "ids"], ["doubled"]),
    ]
    inputs = [value("ids", ("rows", "size")), value("mask", ("rows", "size"))]
    return model(nodes, inputs, [value("mean", ("rows", 1)), value("doubled", ("rows", "size"))], [axis]).SerializeToString()


def test_requests_of_different_lengths_share_a_batch_and_get_their_own_results(tmp_path: Path):
    version = tmp_path / "models" / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(encoder())
    (version.parent / "config.pbtxt").write_text(CONFIG)
    rows = [[1.0, 2.0, 3.0], [4.0], [5.0, 6.0]]
    with running_server(f"--model_base_path={tmp_path / 'models'}", at=tmp_path / "server") as server, ThreadPoolExecutor(3) as threads:
        bodies = [{"inputs": [{"name": "ids", "datatype": "FP32", "shape": [1, len(row)], "data": row}]} for row in rows]
        # The batch goes when it has three rows, and would wait twenty seconds for them.
        responses = list(threads.map(lambda body: server.json("/v2/models/m/infer", body), bodies))
        for row, response in zip(rows, responses, strict=True):
            outputs = {output["name"]: output for output in response["outputs"]}
            assert outputs["doubled"]["data"] == [2 * element for element in row]
            assert outputs["doubled"]["shape"] == [1, len(row)]
            assert outputs["mean"]["data"] == [sum(row) / len(row)]
        [stats] = server.json("/v2/models/m/stats")["model_stats"]
        assert stats["execution_count"] == 1
        metrics = server.get("/metrics")[1].decode()
        assert 'stoker_padded_elements_total{kind="useful",model="m",version="1"} 6\n' in metrics
        assert 'stoker_padded_elements_total{kind="computed",model="m",version="1"} 12\n' in metrics
