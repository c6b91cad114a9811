"""Sequence batching with implicit state, by tritonclient."""

import subprocess
from pathlib import Path

import grpc
from onnx import TensorProto, helper

from tests.fakes.kserve_rows import Answer, Ask, Tensor, over_grpc, over_http
from tests.fakes.onnx_models import model, value
from tests.fakes.server_process import running_server

FOREIGN = Path(__file__).parent / "foreign"
CONFIG = """
max_batch_size: 8
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  oldest { max_candidate_sequences: 8 }
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
  state {
    input_name: "was" output_name: "is" data_type: TYPE_FP32 dims: [ 1 ]
    initial_state { data_type: TYPE_FP32 dims: [ 1 ] zero_data: true }
  }
}
"""
REFUSALS: list[tuple[dict[str, int], str]] = [
    ({"sequence_id": 9}, "for sequence 9 to model 'adding' must specify the START flag on the first request of the sequence"),
    ({}, "to model 'adding' must specify a non-zero or non-empty correlation ID"),
]


def adding() -> bytes:
    """`y` = `x` + what the sequence's requests before brought, which is kept in `is`."""
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    nodes = [
        helper.make_node("Sub", ["one", "START"], ["goes_on"]),
        helper.make_node("Mul", ["was", "goes_on"], ["kept"]),
        helper.make_node("Add", ["x", "kept"], ["y"]),
        helper.make_node("Identity", ["y"], ["is"]),
    ]
    tensors = [value(name, ("n", 1)) for name in ("x", "START", "was")]
    return model(nodes, tensors, [value("y", ("n", 1)), value("is", ("n", 1))], [one]).SerializeToString()


def test_tritonclient_finds_its_sequences_again(tmp_path: Path, clients_python: Path):
    version = tmp_path / "models" / "adding" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(adding())
    (version.parent / "config.pbtxt").write_text(CONFIG)
    with running_server(f"--model_base_path={tmp_path / 'models'}", at=tmp_path / "server") as server:
        command = [str(clients_python), str(FOREIGN / "sequences.py"), server.http, server.grpc]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log()[-2000:]}"
        assert done.stdout.split() == ["http", "grpc", "stream"]
        with grpc.insecure_channel(server.grpc) as channel:
            for parameters, text in REFUSALS:
                ask = Ask(
                    model="adding", id="7", inputs=[Tensor(name="x", datatype="FP32", shape=(1, 1), data=[1.0])], parameters=parameters
                )
                for answer, status in ((over_http(server, ask), 400), (over_grpc(channel, ask), "INVALID_ARGUMENT")):
                    assert answer == Answer(status, f"[request id: 7] inference request {text}")
