"""TensorFlow Serving's REST routes, in process, with a fake engine behind them."""

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stoker.backends.api.backend import Arrays
from stoker.backends.api.errors import Overloaded
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.limits import Limits
from tests.fakes.adlik_calls import Caller, run
from tests.fakes.fake_engine import FakeEngine, FakeModel, echo, model, signature, simple


def posted(engine: FakeEngine, path: str, body: Any, **options: Any) -> tuple[int, Any]:
    """Status and parsed body of the response; NaN and infinities become floats."""
    found: list[tuple[int, Any]] = []

    async def scenario(caller: Caller) -> None:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        response = await caller.http.post(path, content=text)
        assert response.headers["content-type"] == "application/json"
        found.append((response.status_code, json.loads(response.text)))

    run(scenario, engine, **options)
    return found[0]


def got(engine: FakeEngine, path: str) -> tuple[int, Any]:
    found: list[tuple[int, Any]] = []

    async def scenario(caller: Caller) -> None:
        response = await caller.http.get(path)
        found.append((response.status_code, response.json()))

    run(scenario, engine)
    return found[0]


ONES, TWOS = [1] * 16, [2] * 16
ROW = {"INPUT0": ONES, "INPUT1": TWOS}


def test_row_form_accepts_and_returns_samples():
    engine = FakeEngine(simple())
    status, response = posted(engine, "/v1/models/simple:predict", {"instances": [ROW, {"INPUT0": TWOS, "INPUT1": ONES}]})
    assert (status, response) == (
        200,
        {"predictions": [{"OUTPUT0": [3] * 16, "OUTPUT1": [-1] * 16}, {"OUTPUT0": [3] * 16, "OUTPUT1": [1] * 16}]},
    )
    assert engine.requests[0].rows == 2


def test_column_form_accepts_and_returns_tensors():
    body = {"inputs": {"INPUT0": [ONES], "INPUT1": [TWOS], "unknown": 1}, "signature_name": "serving_default"}
    status, response = posted(FakeEngine(simple()), "/v1/models/simple:predict", body)
    assert (status, response) == (200, {"outputs": {"OUTPUT0": [[3] * 16], "OUTPUT1": [[-1] * 16]}})


@pytest.mark.parametrize("body", [{"instances": [[1, 2], [3, 4]]}, {"instances": [{"INPUT": [1, 2]}, {"INPUT": [3, 4]}]}])
def test_one_input_and_one_output_need_no_names(body: Any):
    assert posted(FakeEngine(echo(DataType.FP32)), "/v1/models/echo_fp32:predict", body) == (200, {"predictions": [[1.0, 2.0], [3.0, 4.0]]})


@pytest.mark.parametrize("body", [{"inputs": [[1, 2]]}, {"inputs": {"INPUT": [[1, 2]]}}])
def test_one_column_needs_no_name(body: Any):
    assert posted(FakeEngine(echo(DataType.FP32)), "/v1/models/echo_fp32:predict", body) == (200, {"outputs": [[1.0, 2.0]]})


@pytest.mark.parametrize(
    ("second", "text"),
    [((3,), "Tensor name: B has inconsistent batch size: 3 expecting: 2"), ((), "Tensor name: B has no shape information ")],
)
def test_outputs_without_common_rows_cannot_be_returned_row_by_row(second: tuple[int, ...], text: str):
    outputs = [TensorSpec("A", DataType.FP32, (2,)), TensorSpec("B", DataType.FP32, second)]
    of = signature([TensorSpec("INPUT", DataType.FP32, (2,))], outputs, max_batch_size=0)
    engine = FakeEngine(model("m", of, lambda inputs: {"A": inputs["INPUT"], "B": np.ones(second, np.float32)}))
    assert posted(engine, "/v1/models/m:predict", {"instances": [1, 2]}) == (400, {"error": text})
    status, response = posted(engine, "/v1/models/m:predict", {"inputs": [1, 2]})
    assert (status, response["outputs"]["A"]) == (200, [1.0, 2.0])


def test_non_finite_numbers_round_trip():
    engine = FakeEngine(echo(DataType.FP32))
    status, response = posted(engine, "/v1/models/echo_fp32:predict", b'{"instances": [[NaN, Infinity, -Infinity, 1, 0.1]]}')
    assert status == 200
    found = response["predictions"][0]
    assert np.isnan(found[0])
    assert found[1:] == [float("inf"), float("-inf"), 1.0, 0.1]


def test_several_outputs_in_rows_keep_non_finite_numbers():
    spec = TensorSpec("x", DataType.FP32, ())
    made = model("m", signature([spec], [TensorSpec("a", DataType.FP32, ()), TensorSpec("b", DataType.FP64, (2,))]), lambda given: {
        "a": given["x"], "b": np.array([[np.nan, 1.0]] * len(given["x"]))
    })  # fmt: skip
    found: list[str] = []

    async def scenario(caller: Caller) -> None:
        found.append((await caller.http.post("/v1/models/m:predict", content=b'{"instances": [1.5, Infinity]}')).text)

    run(scenario, FakeEngine(made))
    assert found == ['{"predictions":[{"a":1.5,"b":[NaN,1.0]},{"a":Infinity,"b":[NaN,1.0]}]}']


def renamed(output: str) -> Callable[[Arrays], Arrays]:
    """Returns the input `x` under the name `output`."""
    return lambda given: {output: given["x"]}


def test_strings_are_text_and_bytes_are_base64_if_the_name_requires_it():
    encoded = base64.b64encode(b"\xff\0").decode()
    body = {"instances": ["text", {"b64": encoded}]}
    specs = [TensorSpec("x", DataType.BYTES, ())]
    for name, expected in (("out", ["text", {"b64": encoded}]), ("out_bytes", [{"b64": "dGV4dA=="}, {"b64": encoded}])):
        of = signature(specs, [TensorSpec(name, DataType.BYTES, ())])
        made = model("m", of, renamed(name))
        engine = FakeEngine(made)
        assert posted(engine, "/v1/models/m:predict", body) == (200, {"predictions": expected})
        assert engine.requests[0].inputs["x"].tolist() == [b"text", b"\xff\0"]


def test_half_precision_values_are_json_numbers():
    assert posted(FakeEngine(echo(DataType.FP16)), "/v1/models/echo_fp16:predict", {"instances": [[1, 0.5]]}) == (
        200,
        {"predictions": [[1.0, 0.5]]},
    )


def test_model_without_batch_dimension_accepts_and_returns_whole_tensors():
    engine = FakeEngine(echo(DataType.INT64, (-1, 2), 0))
    assert posted(engine, "/v1/models/echo_int64:predict", {"instances": [[1, 2], [3, 4]]}) == (200, {"predictions": [[1, 2], [3, 4]]})
    scalar = FakeEngine(echo(DataType.FP32, (1,), 0))
    assert posted(scalar, "/v1/models/echo_fp32:predict", {"inputs": [7]}) == (200, {"outputs": [7.0]})


def labelled() -> FakeModel:
    found = simple()
    found.versions = (2, 7)
    found.version_labels = {"stable": 2, "canary": 7}
    return found


@pytest.mark.parametrize(
    ("path", "version"),
    [("/versions/2", 2), ("/labels/stable", 2), ("/labels/canary", 7), ("", None)],
)
def test_versions_and_labels_of_the_path_select_the_version(path: str, version: int | None):
    engine = FakeEngine(labelled())
    assert posted(engine, f"/V1/Models/simple{path}:PREDICT", {"instances": [ROW]})[0] == 200
    assert engine.requests[0].model_version == version


def test_status_is_returned_for_a_model_or_one_version():
    engine = FakeEngine(labelled())
    ready = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    assert got(engine, "/v1/models/simple") == (200, {"model_version_status": [{"version": "7", **ready}, {"version": "2", **ready}]})
    assert got(engine, "/v1/models/simple/labels/stable") == (200, {"model_version_status": [{"version": "2", **ready}]})
    assert got(engine, "/v1/models/simple/versions/3") == (404, {"error": "Could not find version 3 of model simple"})
    assert got(engine, "/v1/models/nobody") == (404, {"error": "Could not find any versions of model nobody"})


def test_metadata_has_the_signatures_by_name():
    status, response = got(FakeEngine(labelled()), "/v1/models/simple/versions/2/metadata")
    assert status == 200
    assert response["model_spec"] == {"name": "simple", "version": "2", "signature_name": ""}
    found = response["metadata"]["signature_def"]["signature_def"]
    assert list(found) == ["serving_default"]
    assert found["serving_default"]["method_name"] == "tensorflow/serving/predict"
    shape = {"dim": [{"size": "-1", "name": ""}, {"size": "16", "name": ""}], "unknown_rank": False}
    assert found["serving_default"]["inputs"]["INPUT0"] == {"name": "INPUT0:0", "dtype": "DT_INT32", "tensor_shape": shape}


REFUSALS: list[tuple[Any, int, str]] = [
    (b"", 400, "JSON Parse error"),
    (b"{", 400, "JSON Parse error"),
    (b'{"instances": [NaN', 400, "JSON Parse error"),
    ({"instances": 1}, 400, "Excepting 'instances' to be an list/array"),
    ({"instances": []}, 400, "No values in 'instances' array"),
    ({"instances": [ROW], "inputs": {}}, 400, "expecting only one of 'inputs' or 'instances'"),
    ({"instances": [ROW], "signature_name": 3}, 400, "'signature_name' key must be a string value"),
    ({"instances": [ROW], "signature_name": "x"}, 400, 'Serving signature name: "x" not found in signature def'),
    ({"instances": [[1]]}, 400, "instances is a plain list, but expecting list of objects"),
    ({"instances": [ROW, [1]]}, 400, "Expecting object but got list at item 1 of input list"),
    ({"instances": [{**ROW, "x": 1}]}, 400, "Failed to process element: 0 key: x of 'instances' list. Error: JSON object: does not"),
    ({"instances": [{"INPUT0": ONES}]}, 400, "keys must be equal to: INPUT0,INPUT1"),
    ({"instances": [ROW, {"INPUT0": ONES}]}, 400, "Failed to process element: 1 of 'instances' list"),
    ({"instances": [ROW, {**ROW, "INPUT1": [1]}]}, 400, "1 key: INPUT1 of 'instances' list. Error: Expecting tensor size: 16 but got: 1"),
    ({"instances": [{**ROW, "INPUT0": ["a"] * 16}]}, 400, 'JSON Value: "a" Type: String is not of expected type: int32'),
    ({"instances": [{**ROW, "INPUT0": [1.5] * 16}]}, 400, "JSON Value: 1.5 Type: Number is not of expected type: int32"),
    ({"instances": [{**ROW, "INPUT0": [1 << 31] * 16}]}, 400, "JSON Value: 2147483648 Type: Number is not of expected type: int32"),
    ({"instances": [{**ROW, "INPUT0": [None] * 16}]}, 400, "JSON Value: null Type: Null"),
    ({"instances": [{**ROW, "INPUT0": [True] * 16}]}, 400, "JSON Value: true Type: True"),
    ({"instances": [{**ROW, "INPUT0": [1] * 15 + [[1]]}]}, 400, "Encountered list at unexpected level"),
    ({"inputs": [1]}, 400, "inputs is a plain value/list, but expecting an object"),
    ({"inputs": {"INPUT0": [ONES]}}, 400, "Missing named input: INPUT1 in 'inputs' object."),
    ({"instances": [{**ROW, "INPUT0": [1]}]}, 400, "unexpected shape"),
    ({"inputs": {"INPUT0": [ONES, ONES], "INPUT1": [ONES]}}, 400, "batch size"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status", "text"), REFUSALS, ids=[text[:40] for *_, text in REFUSALS])
def test_errors_have_tensorflow_servings_texts(body: Any, status: int, text: str):
    engine = FakeEngine(simple())
    found, response = posted(engine, "/v1/models/simple:predict?format=tfs", body)
    assert (found, list(response)) == (status, ["error"])
    assert text in response["error"]


@pytest.mark.parametrize(
    ("value", "datatype", "text"),
    [
        (16777216, DataType.FP32, "Cannot convert JSON value: 16777216 to float without loss of precision."),
        (1e39, DataType.FP32, "without loss of precision"),
        (1 << 53, DataType.FP64, "to double without loss of precision."),
        (1e6, DataType.FP16, "to half without loss of precision."),
        ({"b64": "AA=="}, DataType.FP32, "Type: Object is not of expected type: float"),
        ({"b64": "A"}, DataType.BYTES, "Unable to base64 decode"),
        ({"b65": "A"}, DataType.BYTES, "does not have named input: b65"),
        (300, DataType.UINT8, "JSON Value: 300 Type: Number is not of expected type: uint8"),
        (-1, DataType.UINT64, "JSON Value: -1 Type: Number is not of expected type: uint64"),
        (1, DataType.BOOL, "JSON Value: 1 Type: Number is not of expected type: bool"),
    ],
)
def test_values_out_of_their_types_range_are_refused(value: Any, datatype: DataType, text: str):
    body = json.dumps({"instances": [value]}).encode()
    status, response = posted(FakeEngine(echo(datatype, (), name="m")), "/v1/models/m:predict", body)
    assert status == 400
    assert text in response["error"]


def test_whole_numbers_beyond_every_float_are_refused():
    body = b'{"instances": [NaN, 1%s]}' % (b"0" * 400)
    status, response = posted(FakeEngine(echo(DataType.FP64, (), name="m")), "/v1/models/m:predict", body)
    assert (status, "JSON Parse error" in response["error"]) == (400, True)


def test_codes_equal_those_of_tensorflow_serving():
    async def full(request: object) -> None:
        raise Overloaded("the queue is full", retry_after_s=1.0)

    busy, asleep = simple(), simple()
    busy.before, asleep.is_ready = full, False
    body = {"instances": [ROW]}
    assert posted(FakeEngine(busy), "/v1/models/simple:predict", body) == (503, {"error": "the queue is full"})
    assert posted(FakeEngine(asleep), "/v1/models/simple:predict", body)[0] == 404
    assert posted(FakeEngine(simple()), "/v1/models/ghost:predict", body) == (
        404,
        {"error": "Servable not found for request: Latest(ghost)"},
    )
    assert posted(FakeEngine(simple()), "/v1/models/simple/versions/9:predict", body) == (
        404,
        {"error": "Servable not found for request: Specific(simple, 9)"},
    )
    too_long = f"/v1/models/simple/versions/{'9' * 30}:predict"
    assert posted(FakeEngine(simple()), too_long, body)[1] == {"error": f"Failed to convert version: {'9' * 30} to numeric."}
    assert posted(FakeEngine(simple()), "/v1/models/simple:predict?format=tfs", body, limits=Limits(json_bytes=10))[0] == 413


def classifier(outputs: list[TensorSpec], function: Any) -> FakeModel:
    return model(
        "m", signature([TensorSpec("x", DataType.FP32, (2,)), TensorSpec("tag", DataType.BYTES, (1,), optional=True)], outputs), function
    )


def test_classify_returns_labels_with_scores():
    made = classifier([TensorSpec("y", DataType.FP32, (2,))], lambda given: {"y": given["x"] * 2})
    made.labels["y"] = ["cat"]
    body = {"context": {"x": [0.5, 1]}, "examples": [{}, {"x": [3, 4], "ignored": "z"}]}
    assert posted(FakeEngine(made), "/v1/models/m:classify", body) == (
        200,
        {"results": [[["cat", 1.0], ["", 2.0]], [["cat", 6.0], ["", 8.0]]]},
    )


def test_outputs_named_classes_and_scores_are_used_directly():
    names = np.array([[b"a", b"b"]], dtype=object)
    outputs = [TensorSpec("scores", DataType.FP32, (2,)), TensorSpec("classes", DataType.BYTES, (2,)), TensorSpec("z", DataType.FP32, (1,))]
    made = classifier(outputs, lambda given: {"scores": np.array([[np.nan, 1]], np.float32), "classes": names, "z": given["x"][:, :1]})
    status, response = posted(FakeEngine(made), "/v1/models/m:classify", {"examples": [{"x": [1.0, 2.0]}]})
    assert status == 200
    [[[first, score], second]] = response["results"]
    assert (first, np.isnan(score), second) == ("a", True, ["b", 1.0])


def test_regress_returns_one_number_a_sample():
    made = classifier([TensorSpec("y", DataType.FP32, (1,))], lambda given: {"y": given["x"].sum(axis=1, keepdims=True)})
    body = {"examples": [{"x": [1, 2.5]}, {"x": [3, 4]}]}
    assert posted(FakeEngine(made), "/v1/models/m:regress", body) == (200, {"results": [3.5, 7.0]})


def test_model_without_regression_is_named_in_the_counted_refusal():
    engine = FakeEngine(classifier([TensorSpec("y", DataType.FP32, (2,)), TensorSpec("z", DataType.FP32, (2,))], lambda given: given))
    status, _ = posted(engine, "/v1/models/m:regress", {"examples": [{"x": [1, 2.5]}]})
    assert (status, engine.rejected, set(engine.failed_models)) == (400, ["m"], {"m"})


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "When method is classify, key 'examples' is expected and was not found"),
        ({"examples": 1}, "Expecting 'examples' value to be an list/array"),
        ({"examples": []}, "'examples' value is an empty array"),
        ({"examples": [1]}, "Example must be JSON object but got JSON Number"),
        ({"examples": [{"x": None}]}, "Feature: x has element with unexpected JSON type: Null"),
        ({"examples": [{"x": [[1]]}]}, "Feature: x has element with unexpected JSON type: Array"),
        ({"examples": [{"x": [1, "a"]}]}, "Unexpected element type in feature: x expecting type: int64"),
        ({"examples": [{"x": 1 << 63}]}, "Feature: x has uint64 element"),
        ({"examples": [{"x": ["a", "b"]}]}, "Data types don't match. Data type: string but expected type: float"),
        ({"examples": [{"x": [1]}]}, "has 1 values in an example, but the input takes shape [2]"),
        ({"examples": [{"x": [1, 2]}, {"x": [1]}]}, "has 1 values in one example and 2 in another"),
        ({"examples": [{"x": [1, 2]}, {"y": 1}]}, "is required; it has y"),
        ({"examples": [{"x": [1, 2]}], "signature_name": "nope"}, "No signature was found with the name: nope"),
    ],
)
def test_invalid_examples_are_refused(body: Any, text: str):
    made = classifier([TensorSpec("y", DataType.FP32, (2,))], lambda given: {"y": given["x"]})
    status, response = posted(FakeEngine(made), "/v1/models/m:classify", body)
    assert status == 400
    assert text in response["error"]


def test_model_that_is_not_a_classifier_is_refused_with_its_outputs():
    status, response = posted(FakeEngine(simple()), "/v1/models/simple:classify", {"examples": [{}]})
    assert status == 400
    assert 'at least one of "classes"' in response["error"]
