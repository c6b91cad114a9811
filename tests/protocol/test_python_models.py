"""Models written in Python over the network: Triton's examples, rebuilt from its published rules, judged by tritonclient."""

import base64
import http.client
import json
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.fakes.server_process import ServerProcess, running_server, wait_until

FOREIGN = Path(__file__).parent / "foreign"
MODELS = Path(__file__).parents[1] / "data" / "python_models"
EXECUTIONS = ("process", "thread")


@pytest.fixture(scope="module", params=EXECUTIONS)
def execution(request: pytest.FixtureRequest) -> str:
    """Where the models run."""
    return str(request.param)


@pytest.fixture(scope="module")
def serving(execution: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of all the models; their configurations say where they run."""
    if not entry_points(group="stoker.backends", name="python"):
        pytest.skip("the installed distribution is older than the Python backend: install it again")
    at = tmp_path_factory.mktemp("python")
    shutil.copytree(MODELS, at / "models")
    for model in (at / "models").iterdir():
        with (model / "config.pbtxt").open("a") as config:
            config.write(f'\nparameters {{ key: "execution" value {{ string_value: "{execution}" }} }}\n')
    flags = ("--model-control-mode=explicit", "--load-model=*")
    with running_server(f"--model-repository={at / 'models'}", *flags, at=at / "run") as running:
        yield running


def test_tritonclient_runs_the_examples(serving: ServerProcess, clients_python: Path, tmp_path: Path):
    command = [str(clients_python), str(FOREIGN / "python_models.py"), serving.grpc, serving.http, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{serving.log()[-3000:]}"
    assert done.stdout.split() == [
        "add_sub", "bls", "decoupled", "response-parameters", "control", "metrics",
        "auto-complete", "errors", "sequence", "attributes", "cancellation", "typed",
    ]  # fmt: skip
    assert "a line of the model" in serving.log()


def test_typed_generator_streams_server_sent_events(serving: ServerProcess):
    body = json.dumps({"prompt": "hi", "times": 2}).encode()
    status, text = serving.get("/v2/models/typed_stream/generate_stream", body, {"content-type": "application/json"})
    events = [json.loads(line.removeprefix("data: ")) for line in text.decode().splitlines() if line]
    assert (status, [event["output"] for event in events]) == (200, ["hi typed_stream 0", "hi typed_stream 1"])


def test_parameters_of_streamed_responses_are_in_their_events(serving: ServerProcess):
    status, text = serving.get("/v2/models/tags_stream/generate_stream", b'{"IN": 2}', {"content-type": "application/json"})
    events = [json.loads(line.removeprefix("data: ")) for line in text.decode().splitlines() if line]
    assert (status, [(event["OUT"], event["index"]) for event in events]) == (200, [(2, 0), (2, 1)])


def test_slow_reader_holds_the_model_back(serving: ServerProcess, tmp_path: Path):
    connection = http.client.HTTPConnection("127.0.0.1", serving.http_port, timeout=60)
    connection.request("POST", "/v2/models/endless/generate_stream", json.dumps({"FILE": str(tmp_path / "slow")}))
    response = connection.getresponse()
    response.readline()
    sent = tmp_path / "slow.sent"
    counts: list[str] = []

    def stands_still() -> bool:
        counts.append(sent.read_text() if sent.exists() else "")
        return len(counts) > 50 and counts[-1] != "" and len(set(counts[-50:])) == 1

    wait_until(stands_still, what="the model to wait for its client")
    assert not (tmp_path / "slow").exists()
    connection.close()
    wait_until((tmp_path / "slow").exists, what="the model to see that its client is gone")


def test_load_request_cannot_send_code(serving: ServerProcess):
    content = "import os\nos._exit(1)\n"
    parameters = {
        "config": json.dumps({"backend": "python"}),
        "file:1/model.py": base64.b64encode(content.encode()).decode(),
    }
    body = json.dumps({"parameters": parameters}).encode()
    status, text = serving.get("/v2/repository/models/sent/load", body, {"content-type": "application/json"})
    assert status == 400
    assert b"--allow-python-models=on runs this too" in text


def test_load_request_cannot_name_an_interpreter(serving: ServerProcess):
    config = {"backend": "python", "parameters": {"EXECUTION_ENV_PATH": {"string_value": "/usr"}}}
    body = json.dumps({"parameters": {"config": json.dumps(config)}}).encode()
    status, text = serving.get("/v2/repository/models/typed_caller/load", body, {"content-type": "application/json"})
    assert status == 400
    assert b"EXECUTION_ENV_PATH names a program on the server's host" in text
    assert b"/usr" not in text


def test_start_up_output_names_the_models_that_are_code(serving: ServerProcess):
    assert "note: code of models runs with the rights of the server: add_sub, " in serving.out_path.read_text()
