"""Models that call each other in a cycle fail at once, over the network."""

import json
from collections.abc import Iterator

import pytest

from tests.fakes.server_process import ServerProcess, running_server

pytestmark = pytest.mark.slow

MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "Y", "data_type": "TYPE_INT32", "dims": [1]})
        return config

    def execute(self, requests):
        return [self.respond(request.inputs()[0].as_numpy()) for request in requests]

    def respond(self, left):
        if not left[0]:
            return pb_utils.InferenceResponse([pb_utils.Tensor("Y", left)])
        call = pb_utils.InferenceRequest(model_name="CALLEE", requested_output_names=["Y"], inputs=[pb_utils.Tensor("X", left - 1)])
        response = call.exec()
        return pb_utils.InferenceResponse(response.output_tensors(), error=response.error())
"""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    at = tmp_path_factory.mktemp("cycles")
    for name, callee in (("self", "self"), ("ping", "pong"), ("pong", "ping")):
        (at / "models" / name / "1").mkdir(parents=True)
        (at / "models" / name / "1" / "model.py").write_text(MODEL.replace("CALLEE", callee))
    with running_server(f"--model-repository={at / 'models'}", at=at / "run") as running:
        yield running


def respond(serving: ServerProcess, model: str, calls: int) -> tuple[int, str]:
    body = json.dumps({"inputs": [{"name": "X", "shape": [1], "datatype": "INT32", "data": [calls]}]}).encode()
    status, text = serving.get(f"/v2/models/{model}/infer", body, {"content-type": "application/json"})
    return status, text.decode()


@pytest.mark.parametrize(
    ("model", "calls", "callee", "cycle"), [("self", 1, "self", "self -> self"), ("ping", 2, "ping", "pong -> ping -> pong")]
)
def test_call_that_would_wait_for_itself_fails_at_once_and_the_model_goes_on(
    serving: ServerProcess, model: str, calls: int, callee: str, cycle: str
):
    status, text = respond(serving, model, calls)
    assert status == 500
    assert f"the call to model '{callee}' would never run: its instances wait for calls that wait for this one ({cycle})" in text
    assert respond(serving, model, calls - 1)[0] == 200
