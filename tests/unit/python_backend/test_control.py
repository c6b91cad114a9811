"""`load_model`, `unload_model` and `is_model_ready` of `triton_python_backend_utils`."""

from collections.abc import Callable
from typing import Any

import pytest

from stoker.backends.api.calls import ModelControl
from stoker.backends.api.errors import Unavailable
from stoker.backends.python.control import ModelControls
from stoker.backends.python.errors import TritonModelException
from tests.fakes.python_models import FakeCalls


def test_functions_pass_their_arguments_on():
    calls = FakeCalls({})
    controls = ModelControls(calls)
    controls.load_model("m", files={"file:1/a": b"x"}, config="{}")
    controls.load_model("m")
    controls.unload_model("m", True)
    calls.control_result = False
    assert controls.is_model_ready("m", "3") is False
    assert calls.controls == [
        ModelControl(action="load", model_name="m", config_json="{}", files={"file:1/a": b"x"}),
        ModelControl(action="load", model_name="m"),
        ModelControl(action="unload", model_name="m", unload_dependents=True),
        ModelControl(action="ready", model_name="m", model_version=3),
    ]


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda controls: controls.is_model_ready("m", "latest"), "'latest'"),
        (lambda controls: controls.is_model_ready(""), "must name a model"),
        (lambda controls: controls.load_model("m", files={"file:1/a": "text"}), "to bytes"),
        (lambda controls: controls.load_model("m", {"backend": "python"}), "as JSON text, not dict"),
    ],
)
def test_wrong_argument_is_an_exception_and_reaches_no_server(use: Callable[[Any], Any], text: str):
    calls = FakeCalls({})
    with pytest.raises(TritonModelException, match=text):
        use(ModelControls(calls))
    assert calls.controls == []


def test_error_of_the_server_is_an_exception_with_its_text():
    class Rejecting(FakeCalls):
        def control(self, control: ModelControl) -> bool:
            raise Unavailable("explicit model load / unload is not allowed")

    with pytest.raises(TritonModelException, match=r"^explicit model load / unload is not allowed$"):
        ModelControls(Rejecting({})).unload_model("m")


def test_model_without_a_way_to_the_server_gets_an_exception():
    with pytest.raises(TritonModelException, match="cannot control other models"):
        ModelControls(None).load_model("m")
