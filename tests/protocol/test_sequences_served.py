"""Sequence batching with implicit state, by tritonclient."""

import subprocess
from pathlib import Path

import grpc

from tests.fakes.kserve_rows import Answer, Ask, Tensor, over_grpc, over_http
from tests.fakes.sequence_models import write_adding
from tests.fakes.server_process import running_server

FOREIGN = Path(__file__).parent / "foreign"
REFUSALS: list[tuple[dict[str, int], str]] = [
    ({"sequence_id": 9}, "for sequence 9 to model 'adding' must specify the START flag on the first request of the sequence"),
    ({}, "to model 'adding' must specify a non-zero or non-empty correlation ID"),
]


def test_tritonclient_continues_its_sequences(tmp_path: Path, clients_python: Path):
    write_adding(tmp_path / "models")
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
