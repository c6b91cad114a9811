from collections.abc import Iterator
from pathlib import Path

import numpy as np

from stoker.backends.api.backend import Arrays
from stoker.backends.api.errors import ServingError, UnknownModel
from stoker.backends.api.response_parameters import OutputsWithParameters
from tests.fakes.python_models import FakeCalls, load, run_one, signature, text_of

SERVED = signature({"X": ("FP32", [2])}, {"Y": ("FP32", [2])})
X = {"X": np.array([1, 2], np.float32)}


def double(inputs: Arrays) -> Iterator[Arrays]:
    yield {"Y": inputs["X"] * 2}


def three(inputs: Arrays) -> Iterator[Arrays]:
    for factor in (1, 2, 3):
        yield {"Y": inputs["X"] * factor}


def failing(inputs: Arrays) -> Iterator[Arrays]:
    yield {"Y": inputs["X"]}
    raise UnknownModel("no such model")


def none(inputs: Arrays) -> Iterator[Arrays]:
    yield from ()


MODELS = {"double": double, "three": three, "failing": failing, "none": none}

HEAD = """
import asyncio
import numpy as np
import triton_python_backend_utils as pb_utils

def ask(name, request, **options):
    return pb_utils.InferenceRequest(model_name=name, requested_output_names=["Y"], inputs=request.inputs(), **options)

def checked(response):
    if response.has_error():
        raise pb_utils.TritonModelException(f"{response.error().code()} {response.error().message()}")
    return pb_utils.get_output_tensor_by_name(response, "Y").as_numpy()

def result(array):
    return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)])]
"""


def model(*lines: str, prefix: str = "") -> str:
    body = "\n".join(f"        {line}" for line in lines)
    return f"{HEAD}\nclass TritonPythonModel:\n    {prefix}def execute(self, requests):\n        request, = requests\n{body}\n"


def respond(folder: Path, calls: FakeCalls | None, *lines: str, prefix: str = "") -> np.ndarray | str:
    instance = load(folder, model(*lines, prefix=prefix), SERVED, calls=calls)
    outcome = run_one(instance, SERVED, inputs=X)
    instance.close()
    return text_of(outcome) if isinstance(outcome, ServingError) else outcome["Y"]


def test_exec_returns_the_response_of_another_model(tmp_path: Path):
    calls = FakeCalls(MODELS)
    found = respond(
        tmp_path,
        calls,
        "flags = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
        "asked = ask('double', request, request_id='a', correlation_id=7, flags=flags, timeout=5, priority=1, parameters={'k': 1})",
        "return result(checked(asked.exec()))",
    )
    assert np.array_equal(found, [2, 4])
    (call,) = calls.calls
    assert (call.model_name, call.model_version, call.output_names, call.request_id) == ("double", None, ("Y",), "a")
    assert (call.sequence_id, call.sequence_start, call.sequence_end, call.timeout_us, call.priority) == (7, True, False, 5, 1)
    assert call.parameters == {"k": 1}


def test_error_of_another_model_is_a_response_with_its_code(tmp_path: Path):
    assert respond(tmp_path, FakeCalls(MODELS), "return result(checked(ask('failing', request).exec()))") == "2 no such model"


def test_exec_of_a_model_that_responds_otherwise_than_once_is_an_error(tmp_path: Path):
    calls = FakeCalls(MODELS)
    for name, count in (("three", "more"), ("none", "none")):
        text = respond(tmp_path / name, calls, f"return result(checked(ask('{name}', request).exec()))")
        assert text == f"1 expected a single response, got {count}: use exec(decoupled=True) for a decoupled model"
    assert calls.closed == 2


def test_decoupled_exec_yields_every_response(tmp_path: Path):
    found = respond(tmp_path, FakeCalls(MODELS), "return result(sum(checked(each) for each in ask('three', request).exec(decoupled=True)))")
    assert np.array_equal(found, [6, 12])


def test_error_is_the_last_of_decoupled_responses(tmp_path: Path):
    found = respond(
        tmp_path,
        FakeCalls(MODELS),
        "found = [each.has_error() for each in ask('failing', request).exec(decoupled=True)]",
        "return result(np.array(found, np.float32))",
    )
    assert np.array_equal(found, [0, 1])


def test_cancel_of_decoupled_responses_ends_them(tmp_path: Path):
    calls = FakeCalls(MODELS)
    found = respond(
        tmp_path,
        calls,
        "responses = ask('three', request).exec(decoupled=True)",
        "first = checked(next(responses))",
        "responses.cancel()",
        "return result(first + len(list(responses)))",
    )
    assert np.array_equal(found, [1, 2])
    assert calls.closed == 1


def test_async_exec_of_several_models_can_be_gathered(tmp_path: Path):
    found = respond(
        tmp_path,
        FakeCalls(MODELS),
        "asked = [ask('double', request).async_exec(), ask('three', request).async_exec(decoupled=True)]",
        "single, several = await asyncio.gather(*asked)",
        "return result(checked(single) + sum(checked(each) for each in several))",
        prefix="async ",
    )
    assert np.array_equal(found, [8, 16])


def test_strings_of_a_call_are_bytes(tmp_path: Path):
    served = signature({"X": ("FP32", [1])}, {"Y": ("BYTES", [1])})
    seen: list[Arrays] = []

    def take(inputs: Arrays) -> Iterator[Arrays]:
        seen.append(inputs)
        yield {"Y": inputs["T"]}

    lines = (
        "text = pb_utils.Tensor('T', np.array(['é'], dtype=object))",
        "asked = pb_utils.InferenceRequest(model_name='take', requested_output_names=[], inputs=[text])",
        "return [pb_utils.InferenceResponse(asked.exec().output_tensors())]",
    )
    outcome = run_one(load(tmp_path, model(*lines), served, calls=FakeCalls({"take": take})), served, inputs={"X": np.zeros(1, np.float32)})
    assert not isinstance(outcome, ServingError)
    assert seen[0]["T"][0] == outcome["Y"][0] == "é".encode()


def test_parameters_of_a_response_of_another_model_are_json(tmp_path: Path):
    def tagged(inputs: Arrays) -> Iterator[Arrays]:
        yield OutputsWithParameters({"Y": inputs["X"]}, {"tag": 7})

    lines = ("found = json.loads(ask('tagged', request).exec().parameters())", "return result(np.full(2, found['tag'], np.float32))")
    assert np.array_equal(respond(tmp_path, FakeCalls({"tagged": tagged}), "import json", *lines), [7, 7])


def test_model_without_a_way_to_others_cannot_call_them(tmp_path: Path):
    assert "cannot ask other models" in str(respond(tmp_path, None, "return result(checked(ask('double', request).exec()))"))


def test_request_that_names_no_model_is_rejected(tmp_path: Path):
    assert "must name the model" in str(respond(tmp_path, FakeCalls(MODELS), "return result(checked(ask('', request).exec()))"))


def traced(folder: Path, calls: FakeCalls, context: str) -> str:
    """The error with which a model responds: the context of its request, after a call with the request's trace."""
    lines = (
        "checked(ask('double', request, trace=request.trace()).exec())",
        "raise pb_utils.TritonModelException(repr(request.trace().get_context()))",
    )
    instance = load(folder, model(*lines), SERVED, calls=calls)
    outcome = run_one(instance, SERVED, inputs=X, trace_context=context)
    instance.close()
    return text_of(outcome)


def test_call_has_the_trace_of_the_request(tmp_path: Path):
    calls = FakeCalls(MODELS)
    context = '{"traceparent": "00-1-2-01"}'
    assert repr(context) in traced(tmp_path / "traced", calls, context)
    assert "None" in traced(tmp_path / "untraced", calls, "")
    assert [call.trace_context for call in calls.calls] == [context, ""]


def test_trace_of_another_type_is_rejected(tmp_path: Path):
    found = respond(tmp_path, FakeCalls(MODELS), "return result(ask('double', request, trace='00-1-2-01'))")
    assert isinstance(found, str)
    assert "trace takes an InferenceTrace, such as request.trace(), not str" in found
