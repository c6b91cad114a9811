"""Adlik's REST routes, in process, with a fake engine behind them."""

import base64
import gzip
import json
from typing import Any

import numpy as np
import pytest

from stoker.backends.api.errors import Overloaded, QueueTimeout, Unavailable
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.limits import Limits
from stoker.server.core.request import InferRequest
from stoker.server.protocols.settings import AdlikSettings, RestV1
from tests.fakes.adlik_calls import Caller, run
from tests.fakes.fake_engine import FakeEngine, FakeModel, echo, model, signature, simple

A = np.arange(32, dtype=np.int32).reshape(2, 16)
URL = "/v1/models/simple:predict"


def tensor(array: Any, dtype: str = "DT_INT32") -> dict[str, Any]:
    return {
        "dtype": dtype,
        "tensor_shape": {"dim": [{"size": str(size)} for size in array.shape]},
        "tensor_content": base64.b64encode(array.tobytes()).decode(),
    }


def body(**changes: Any) -> dict[str, Any]:
    return {"batch_size": 2, "inputs": {"INPUT0": tensor(A), "INPUT1": tensor(A)}, **changes}


def ask(*checks: tuple[str, Any, int, str], engine: FakeEngine | None = None, **options: Any) -> None:
    """POSTs each (path, body, status, part of the response); a body of None is a GET."""

    async def scenario(caller: Caller) -> None:
        for path, given, status, text in checks:
            if given is None:
                response = await caller.http.get(path)
            else:
                response = await caller.http.post(path, content=given if isinstance(given, bytes) else json.dumps(given).encode())
            assert (response.status_code, response.headers["content-type"]) == (status, "application/json"), response.text
            assert text in response.text
            if status != 200:
                assert list(response.json()) == ["error"]

    run(scenario, engine or FakeEngine(simple()), **options)


def test_prediction_is_proto3_json():
    async def scenario(caller: Caller) -> None:
        response = (await caller.http.post(URL, json=body(output_filter={"OUTPUT0": {}}))).json()
        assert response == {"model_spec": {"name": "simple", "version": "0"}, "outputs": {"OUTPUT0": {"tensor": tensor(A + A)}}}

    run(scenario, FakeEngine(simple()))


@pytest.mark.parametrize(
    ("path", "spec", "version", "echoed"),
    [
        ("/v1/models/simple/versions/3:predict", {}, 3, "3"),
        ("/V1/Models/simple/Versions/3:PREDICT", {"version": "5"}, 3, "3"),
        (URL, {"name": "ignored", "version": "2"}, 2, "2"),
        (URL, {"version": 2}, 2, "2"),
        (URL, {"versionLabel": "stable"}, 2, "0"),
        (URL, {"version_label": "anything"}, None, "0"),
    ],
)
def test_url_overrides_the_body_and_paths_are_case_insensitive(path, spec, version, echoed):
    found = simple()
    found.versions = (2, 3, 5)
    engine = FakeEngine(found)

    async def scenario(caller: Caller) -> None:
        response = (await caller.http.post(path, json=body(model_spec=spec))).json()
        assert response["model_spec"] == {"name": "simple", "version": echoed}
        assert engine.requests[0].model_version == version

    run(scenario, engine)


@pytest.mark.parametrize(
    ("datatype", "name", "field", "values", "expected"),
    [
        (DataType.FP32, 1, "float_val", [1, "-2.5", "NaN", "-Infinity"], np.array([1, -2.5, np.nan, -np.inf], np.float32)),
        (DataType.FP64, "DT_DOUBLE", "doubleVal", [1, 2.5, 3, 1e300], np.array([1, 2.5, 3, 1e300])),
        (DataType.FP16, "DT_HALF", "half_val", [15360, 0, 0, 0], np.array([1, 0, 0, 0], np.float16)),
        (DataType.INT32, "DT_INT32", "intVal", [1, -1, 2.0, 0], np.array([1, -1, 2, 0], np.int32)),
        (DataType.INT64, None, "int64_val", ["1", str(-(1 << 63)), 3, "4"], np.array([1, -(1 << 63), 3, 4])),
        (DataType.UINT64, 23, "uint64_val", ["1", "2", "3", str((1 << 64) - 1)], np.array([1, 2, 3, (1 << 64) - 1], np.uint64)),
        (DataType.BOOL, "DT_BOOL", "bool_val", [True, False, True, True], np.array([True, False, True, True])),
        (DataType.BYTES, "DT_STRING", "string_val", ["YQ==", "", "_-8", "AAE"], np.array([b"a", b"", b"\xff\xef", b"\0\1"], object)),
    ],
)
def test_typed_values_are_accepted_in_every_form_of_proto3_json(datatype, name, field, values, expected):
    engine = FakeEngine(echo(datatype, (4,), name="m"))

    async def scenario(caller: Caller) -> None:
        given = {"dtype": name, field: values, "unknown": [{"is": "ignored"}]}
        response = await caller.http.post("/v1/models/m:predict", json={"batchSize": "1", "inputs": {"INPUT": given}, "more": None})
        assert response.status_code == 200, response.text
        np.testing.assert_array_equal(engine.requests[0].inputs["INPUT"][0], expected)

    run(scenario, engine)


def test_top_k_omits_default_values():
    spec = [TensorSpec("y", DataType.FP32, (3,))]
    values = np.array([[0.0, float("inf"), -1.0]], np.float32)
    found = model("m", signature([TensorSpec("x", DataType.FP32, (1,))], spec), lambda _: {"y": values})
    found.labels["y"] = ["", "one"]

    async def scenario(caller: Caller) -> None:
        request = {"batch_size": 1, "inputs": {"x": {"float_val": [0]}}, "output_filter": {"y": {"cls": {"count": 3}}}}
        response = (await caller.http.post("/v1/models/m:predict", json=request)).json()
        classes = [{"idx": 1, "score": "Infinity", "label": "one"}, {}, {"idx": 2, "score": -1.0}]
        assert response["outputs"]["y"]["batch_classes"] == [{"cls": classes}]

    run(scenario, FakeEngine(found))


def test_large_bodies_are_decoded_in_threads_and_compressed_ones_decompressed():
    values = np.random.default_rng(1).standard_normal((2, 200_000)).astype(np.float32)
    engine = FakeEngine(echo(DataType.FP32))

    async def scenario(caller: Caller) -> None:
        text = json.dumps({"batch_size": 2, "inputs": {"INPUT": tensor(values, "DT_FLOAT")}}).encode()
        for content, headers in ((text, {}), (gzip.compress(text, 1), {"content-encoding": "gzip", "accept-encoding": "gzip"})):
            response = await caller.http.post("/v1/models/echo_fp32:predict", content=content, headers=headers)
            found = base64.b64decode(response.json()["outputs"]["OUTPUT"]["tensor"]["tensor_content"])
            np.testing.assert_array_equal(np.frombuffer(found, np.float32).reshape(2, -1), values)

    run(scenario, engine)


BAD_BODIES = [
    (b"{", "failed to parse"),
    (b"", "failed to parse"),
    (body(batch_size=0), "batch_size must be at least 1"),
    (body(batch_size=-1), "batch_size must be an integer"),
    (body(batch_size="x"), "batch_size must be an integer"),
    (body(batch_size=True), "batch_size must be an integer"),
    (body(batch_size=1.5), "batch_size must be an integer"),
    (body(batch_size=9), "max_batch_size 8"),
    (body(inputs=[]), "inputs must be an object"),
    (body(inputs={}), "INPUT0"),
    (body(inputs={"INPUT0": 3, "INPUT1": 3}), "inputs.INPUT0 must be an object"),
    (body(inputs={"INPUT0": {**tensor(A), "dtype": "DT_NONE"}, "INPUT1": tensor(A)}), "inputs.INPUT0.dtype 'DT_NONE'"),
    (body(inputs={"INPUT0": {**tensor(A), "dtype": "DT_FLOAT"}, "INPUT1": tensor(A)}), "DT_FLOAT, but the model expects DT_INT32"),
    (body(inputs={"INPUT0": {"tensor_content": "a$b"}, "INPUT1": tensor(A)}), "inputs.INPUT0.tensor_content must be base64"),
    (body(inputs={"INPUT0": {"tensor_content": "é"}, "INPUT1": tensor(A)}), "must be base64"),
    (body(inputs={"INPUT0": {"tensor_content": "AAAA"}, "INPUT1": tensor(A)}), "3 bytes of tensor_content"),
    (body(inputs={"INPUT0": {"tensor_content": "A"}, "INPUT1": tensor(A)}), "must be base64"),
    (body(inputs={"INPUT0": {"int_val": [1, "x"]}, "INPUT1": tensor(A)}), "inputs.INPUT0.int_val must hold integers"),
    (body(inputs={"INPUT0": {"int_val": [1 << 31]}, "INPUT1": tensor(A)}), "inputs.INPUT0.int_val must hold integers"),
    (body(inputs={"INPUT0": {"int_val": [1.5]}, "INPUT1": tensor(A)}), "inputs.INPUT0.int_val must hold integers"),
    (body(inputs={"INPUT0": {"int_val": [[1]]}, "INPUT1": tensor(A)}), "inputs.INPUT0.int_val must hold integers"),
    (body(inputs={"INPUT0": {"int_val": [True]}, "INPUT1": tensor(A)}), "inputs.INPUT0.int_val must hold integers"),
    (body(inputs={"INPUT0": {"int_val": 1}, "INPUT1": tensor(A)}), "inputs.INPUT0.int_val must be an array"),
    (body(inputs={"INPUT0": {"float_val": ["x"]}, "INPUT1": tensor(A)}), "inputs.INPUT0.float_val must hold numbers"),
    (body(inputs={"INPUT0": {"tensor_shape": {"dim": [{"size": "x"}]}}, "INPUT1": tensor(A)}), "dim.size must be an integer"),
    (body(inputs={"INPUT0": {"tensor_shape": {"dim": [{}] * 33}}, "INPUT1": tensor(A)}), "33 dimensions"),
    (body(output_filter={"none": {}}), "Output none does not exist"),
    (body(output_filter={"OUTPUT0": {"cls": {"count": -1}}}), "output_filter.OUTPUT0.cls.count"),
    (body(model_spec={"version": "1", "version_label": "stable"}), "give one of them"),
    (body(model_spec={"version": "9"}), "version 9"),
    (body(model_spec={"version": [1]}), "model_spec.version must be an integer"),
    (b'{"batch_size": 1, "inputs": ' + b'{"a": ' * 200 + b"1" + b"}" * 201, "nested"),
]


def test_bad_bodies_are_refused_with_their_field():
    ask(*((URL, given, 400, text) for given, text in BAD_BODIES))


BAD_PATHS = [
    ("/v1/models/ghost:predict", body(), 400, "ghost"),
    ("/v1/models/ghost/metadata?format=adlik", None, 404, "ghost"),
    ("/v1/models/simple/versions/9/metadata?format=adlik", None, 404, "no version 9"),
    ("/v1/models/%2e%2e:predict", body(), 400, "invalid model name"),
    ("/v1/models/simple:ml_predict", {}, 501, "tasks"),
    ("/v1/models/simple/versions/1:ml_predict", {}, 501, "tasks"),
    ("/v1/models/simple:predict", None, 400, "Malformed request"),
    ("/v1/models/simple/metadata", {}, 400, "Malformed request"),
    ("/v1/", None, 400, "Malformed request"),
    ("/v1/models/simple:other", {}, 400, "Malformed request"),
    ("/v1/models/simple/versions/x:predict", body(), 400, "Malformed request"),
    ("/v1x", None, 404, "Not Found"),
    (f"{URL}?format=other", body(), 400, "format=other"),
]


def test_unknown_paths_and_names_are_not_found():
    ask(*BAD_PATHS)


#: Bodies of TensorFlow Serving's, and what its front finds wrong with them.
TFS_BODIES = (
    ({"instances": [[1, 2]]}, "instances is a plain list"),
    ({"inputs": [[1, 2]]}, "inputs is a plain value/list"),
    ({"inputs": {"INPUT0": [[1]], "INPUT1": [[1]]}}, "unexpected shape"),
    ({"inputs": {"INPUT0": {"b64": "AA=="}}}, "Missing named input: INPUT1"),
)


def test_body_determines_the_protocol():
    ask(
        *((URL, given, 400, text) for given, text in TFS_BODIES),
        *((f"{URL}?format=adlik", given, 400, "") for given, _ in TFS_BODIES),
        (URL, {"inputs": {"INPUT0": {"dtype": "DT_INT32"}}}, 400, "batch_size must be at least 1"),
        (URL, {"inputs": {}, "batch_size": 0}, 400, "batch_size must be at least 1"),
        (f"{URL}?format=tfs", body(), 400, "Type: Object is not of expected type: int32"),
    )


def test_tensorflow_serving_body_keeps_its_protocol_if_adlik_is_preferred():
    beside = ({"instances": [[1, 2]], "batch_size": 1}, "instances is a plain list")
    ask(*((URL, given, 400, text) for given, text in (*TFS_BODIES, beside)), settings=AdlikSettings(prefer_adlik=True))


#: Bodies with nothing of either protocol, with what TensorFlow Serving's front and Adlik's find wrong with them.
FOREIGN_BODIES: tuple[tuple[object, str, str], ...] = (
    ({}, "Missing 'inputs' or 'instances' key", "batch_size must be at least 1"),
    ({"instance": [1]}, "Missing 'inputs' or 'instances' key", "batch_size must be at least 1"),
    ({"inputs": None}, "inputs is a plain value", "batch_size must be at least 1"),
    ([], "Is not object", "must be an object"),
    (b"null", "Is not object", "batch_size must be at least 1"),
)


def test_body_of_neither_protocol_gets_tensorflow_servings_error_unless_adlik_is_preferred():
    ask(*((URL, given, 400, text) for given, text, _ in FOREIGN_BODIES))
    ask(*((URL, given, 400, text) for given, _, text in FOREIGN_BODIES), settings=AdlikSettings(prefer_adlik=True))


def test_operator_setting_determines_the_protocol_of_every_request():
    ask(*((URL, given, 400, "batch_size") for given, _ in TFS_BODIES[:1]), settings=AdlikSettings(rest_v1=RestV1.ADLIK))
    ask((URL, body(), 400, "is not of expected type"), settings=AdlikSettings(rest_v1=RestV1.TFS))
    ask((f"{URL}?format=adlik", body(), 200, "outputs"), settings=AdlikSettings(rest_v1=RestV1.TFS))


def test_tensorflow_serving_routes_respond_unless_only_adlik_is_enabled():
    ask(
        ("/v1/models/simple", None, 200, "AVAILABLE"),
        ("/v1/models/simple/labels/x/metadata", None, 400, "Unrecognized servable version label: x"),
        ("/v1/models/simple:classify", {}, 400, "key 'examples' is expected"),
    )
    paths = ("/v1/models/simple", "/v1/models/simple/labels/x/metadata")
    ask(*((path, None, 400, "Malformed") for path in paths), settings=AdlikSettings(rest_v1=RestV1.ADLIK))


def platform(name: str) -> FakeModel:
    import dataclasses

    found = simple()
    found.config = dataclasses.replace(found.config, platform=name)
    return found


def test_metadata_has_adliks_form_for_adliks_platforms_or_if_preferred():
    url = "/v1/models/simple/metadata"
    ask((url, None, 200, "signature_def"), (f"{url}?format=adlik", None, 200, "config"))
    ask((url, None, 200, "config"), (f"{url}?format=tfs", None, 200, "signature_def"), engine=FakeEngine(platform("topsinference")))
    ask((url, None, 200, "config"), settings=AdlikSettings(prefer_adlik=True))
    ask((url, None, 200, "signature_def"), settings=AdlikSettings(rest_v1=RestV1.TFS, prefer_adlik=True))


def test_metadata_is_proto3_json():
    async def scenario(caller: Caller) -> None:
        response = (await caller.http.get("/v1/models/simple/versions/1/metadata")).json()
        assert response["model_spec"] == {"name": "simple", "version": "1"}
        assert response["config"]["input"][0] == {"name": "INPUT0", "data_type": "DT_INT32", "dims": ["16"]}
        assert response["config"]["max_batch_size"] == 8
        assert response["version_status"] == {"1": {"ready_state": "MODEL_READY"}}
        head = await caller.http.head("/v1/models/simple/metadata")
        assert (head.status_code, head.content) == (200, b"")

    run(scenario, FakeEngine(simple()), settings=AdlikSettings(prefer_adlik=True))


@pytest.mark.parametrize(
    ("error", "status"), [(Overloaded("full", retry_after_s=3), 503), (QueueTimeout("late"), 429), (Unavailable("not ready"), 503)]
)
def test_engine_failures_have_adliks_http_status(error, status):
    async def fail(_request: InferRequest) -> None:
        raise error

    found = simple()
    found.before = fail
    ask((URL, body(), status, error.message), engine=FakeEngine(found))


def test_body_above_the_limit_is_refused():
    ask((URL, body(), 413, "limit"), limits=Limits(http_body_bytes=100))


def test_internal_error_response_has_no_traceback():
    def broken(_inputs: Any) -> Any:
        raise RuntimeError("secret")

    async def scenario(caller: Caller) -> None:
        response = await caller.http.post(URL, json=body())
        assert (response.status_code, response.json()) == (500, {"error": "internal error: see the server's log"})

    found = simple()
    found.function = broken
    run(scenario, FakeEngine(found))


def test_openapi_document_lists_the_routes():
    async def scenario(caller: Caller) -> None:
        paths = (await caller.http.get("/openapi.json")).json()["paths"]
        for version in ("", "/versions/{version}"):
            assert set(paths[f"/v1/models/{{model}}{version}:predict"]) == {"post"}
            assert set(paths[f"/v1/models/{{model}}{version}/metadata"]) == {"get"}
            assert set(paths[f"/v1/models/{{model}}{version}:ml_predict"]) == {"post"}

    run(scenario, FakeEngine(simple()))
