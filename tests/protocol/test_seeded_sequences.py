"""Sequences that begin with a state from a file, beside a warm-up and a passive instance group, through a running server."""

import struct
from pathlib import Path

from onnx import helper

from tests.fakes.onnx_models import model, value
from tests.fakes.server_process import running_server, start_server, wait_until

CONFIG = """
max_batch_size: 8
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  direct { max_queue_delay_microseconds: 1000 minimum_slot_utilization: 0.5 }
  state {
    input_name: "was" output_name: "is" data_type: TYPE_FP32 dims: [ 1 ]
    initial_state { data_type: TYPE_FP32 dims: [ 1 ] data_file: "hundred" }
  }
}
model_warmup { name: "w" batch_size: 3 inputs { key: "x" value { data_type: TYPE_FP32 dims: 1 zero_data: true } } }
instance_group [ { count: 1 }, { count: 1 passive: true } ]
"""


def running_sum() -> bytes:
    """`y` = `is` = `x` + `was`."""
    nodes = [helper.make_node("Add", ["x", "was"], ["y"]), helper.make_node("Identity", ["y"], ["is"])]
    return model(nodes, [value("x", ("n", 1)), value("was", ("n", 1))], [value("y", ("n", 1)), value("is", ("n", 1))]).SerializeToString()


def write(repository: Path, seed: bytes) -> None:
    version = repository / "sum" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(running_sum())
    (version.parent / "config.pbtxt").write_text(CONFIG)
    (version.parent / "initial_state").mkdir()
    (version.parent / "initial_state" / "hundred").write_bytes(seed)


def test_every_sequence_begins_with_the_state_in_the_file(tmp_path: Path):
    write(tmp_path / "models", struct.pack("<f", 100))
    with running_server(f"--model-repository={tmp_path / 'models'}", at=tmp_path / "server") as server:

        def ask(sequence: int, x: float, *, is_start: bool = False) -> float:
            body = {
                "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [x]}],
                "outputs": [{"name": "y"}],
                "parameters": {"sequence_id": sequence, "sequence_start": is_start},
            }
            return float(server.json("/v2/models/sum/infer", body)["outputs"][0]["data"][0])

        assert [ask(1, 1, is_start=True), ask(2, 10, is_start=True), ask(1, 2), ask(2, 20)] == [101, 110, 103, 130]
        config = server.json("/v2/models/sum/config")
        assert [group.get("passive", False) for group in config["instance_group"]] == [False, True]


def test_file_of_another_size_fails_the_load_with_its_name(tmp_path: Path):
    write(tmp_path / "models", b"abc")
    server = start_server(f"--model-repository={tmp_path / 'models'}", at=tmp_path / "server", wait_ready=False)
    try:
        wait_until(lambda: "initial_state of 'was', data_file 'hundred': holds 3 bytes" in server.log(), what="the failed load")
    finally:
        server.stop()
