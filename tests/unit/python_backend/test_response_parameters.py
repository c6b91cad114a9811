"""Parameters of the responses of models: what is checked, and the way to the request's outcome."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.backends.api.errors import ServingError
from stoker.backends.api.response_parameters import (
    MAX_PARAMETERS,
    MAX_PARAMETERS_BYTES,
    OutputsWithParameters,
    check_response_parameters,
    parameters_of,
    with_parameters,
)
from tests.fakes.python_models import Item, Sink, load, run, run_one, signature, text_of

SERVED = signature({"X": ("FP32", [2])}, {"Y": ("FP32", [2])}, 8)
X = np.ones((1, 2), np.float32)
SOURCE = """
import numpy as np
import triton_python_backend_utils as pb_utils

def response(request, parameters):
    return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ones((1, 2), np.float32))], parameters=parameters)

class TritonPythonModel:
    def execute(self, requests):
        {}
"""


def test_each_request_gets_the_parameters_of_its_own_response(tmp_path: Path):
    source = SOURCE.format("return [response(each, {'id': each.request_id()} if each.request_id() else None) for each in requests]")
    instance = load(tmp_path, source, SERVED)
    outcomes = run(instance, SERVED, [Item({"X": X}, ("Y",), request_id=name) for name in ("a", "", "b")])
    assert [parameters_of(each) for each in outcomes if not isinstance(each, ServingError)] == [{"id": "a"}, None, {"id": "b"}]
    assert type(outcomes[1]) is dict


def test_each_response_of_a_decoupled_model_has_its_own_parameters(tmp_path: Path):
    served = signature({"X": ("FP32", [2])}, {"Y": ("FP32", [2])}, 8, is_decoupled=True)
    lines = (
        "sender = requests[0].get_response_sender()",
        "sender.send(response(None, {'index': 0}))",
        "sender.send(response(None, {'index': 1}), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)",
    )
    sink = Sink()
    run_one(load(tmp_path, SOURCE.format("\n        ".join(lines)), served), served, inputs={"X": X}, responses=sink)
    assert [parameters_of(outputs) for outputs in sink.taken] == [{"index": 0}, {"index": 1}]


def test_model_that_makes_an_invalid_parameter_gets_an_exception(tmp_path: Path):
    outcome = run_one(load(tmp_path, SOURCE.format("return [response(None, {'a': [1]})]"), SERVED), SERVED, inputs={"X": X})
    assert text_of(outcome) == "parameter 'a' takes a bool, int, float or str, not list"


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({1: 1}, "parameter '1' takes"),
        ({"a": b"x"}, "not bytes"),
        ({"a": 1 << 63}, "64-bit"),
        ({"a": math.nan}, "which JSON cannot hold"),
        ({"a": "\ud800"}, "not valid Unicode"),
        ({"triton_final_response": True}, "set by the server"),
        ({str(index): 1 for index in range(MAX_PARAMETERS + 1)}, f"at most {MAX_PARAMETERS} parameters, not {MAX_PARAMETERS + 1}"),
        ({"a": "x" * MAX_PARAMETERS_BYTES}, f"at most {MAX_PARAMETERS_BYTES} bytes, not {MAX_PARAMETERS_BYTES + 1}"),
        ([1], "a dict, not list"),
    ],
)
def test_parameters_that_a_protocol_cannot_send_are_rejected(parameters: Any, text: str):
    with pytest.raises(ValueError, match=text):
        check_response_parameters(parameters)


def test_subclasses_of_plain_types_become_plain():
    checked = check_response_parameters({"a": np.float64(0.5), "b": np.str_("x"), "c": -(1 << 63), "d": True})
    assert checked == {"a": 0.5, "b": "x", "c": -(1 << 63), "d": True}
    assert [type(value) for value in checked.values()] == [float, str, int, bool]


def test_outputs_without_parameters_stay_as_they_are():
    outputs = {"Y": X}
    assert with_parameters(outputs, {}) is outputs
    assert isinstance(with_parameters(outputs, {"a": 1}), OutputsWithParameters)
