"""PredictionService and ModelService as messages, without a transport, with a fake engine behind them."""

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from stoker.backends.api.errors import InvalidRequest, ModelLoadError, NotFound, ServingError, TooLarge, Unsupported
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.tensors import whole
from stoker.server.core.limits import Limits
from stoker.server.pb.tensorflow.core.framework import tensor_pb2, types_pb2
from stoker.server.pb.tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    predict_pb2,
    regression_pb2,
)
from stoker.server.protocols.settings import TfsSettings
from stoker.server.protocols.tfs.model_spec import FailedPrecondition, tfs_status
from stoker.server.protocols.tfs.service import TfsService, tfs_methods
from stoker.server.rpc.method import Method
from tests.fakes.fake_engine import FakeEngine, FakeModel, echo, model, signature, simple

A = np.arange(32, dtype=np.int32).reshape(2, 16)
FIELDS = {
    DataType.FP32: "float_val", DataType.FP64: "double_val", DataType.BOOL: "bool_val", DataType.INT32: "int_val", DataType.INT8: "int_val",
    DataType.UINT16: "int_val", DataType.INT64: "int64_val", DataType.UINT32: "uint32_val", DataType.UINT64: "uint64_val",
}  # fmt: skip
NUMBERS = {"FP32": "DT_FLOAT", "FP64": "DT_DOUBLE", "FP16": "DT_HALF", "BF16": "DT_BFLOAT16", "BYTES": "DT_STRING"}


class Call:
    """The part of a call that these methods use."""

    deadline_ns: int | None = None


def answered(engine: FakeEngine, name: str, request: Any, limits: Limits | None = None, settings: TfsSettings | None = None) -> Any:
    """The response of the method `name`, serialised and parsed again, as a client sees it."""
    bounds = limits or Limits()
    methods: Mapping[str, Method] = {
        each.path.rpartition("/")[2]: each for each in tfs_methods(engine, bounds, TfsService(engine, bounds, settings))
    }

    async def call() -> Any:
        data = request if isinstance(request, bytes) else request.SerializeToString()
        start: Any = methods[name].start
        found = await start(data, Call()).outcome()
        return whole(found) if isinstance(found, list) else found

    response = asyncio.run(call())
    assert engine.reserved_bytes == 0
    return predict_pb2.PredictResponse.FromString(response) if isinstance(response, bytes) else response


def tensor(array: Any, dtype: int, **fields: Any) -> tensor_pb2.TensorProto:
    made = tensor_pb2.TensorProto(dtype=dtype, **fields)  # type: ignore[arg-type] # an enum's number
    for size in array.shape:
        made.tensor_shape.dim.add(size=size)
    return made


def predict(inputs: Mapping[str, tensor_pb2.TensorProto], name: str = "simple", **fields: Any) -> predict_pb2.PredictRequest:
    request = predict_pb2.PredictRequest(**fields)
    request.model_spec.name = name
    for key, value in inputs.items():
        request.inputs[key].CopyFrom(value)
    return request


def raw(array: Any) -> tensor_pb2.TensorProto:
    return tensor(array, types_pb2.DT_INT32, tensor_content=array.tobytes())


def test_predict_returns_typed_values_because_clients_read_them():
    response = answered(FakeEngine(simple()), "Predict", predict({"INPUT0": raw(A), "INPUT1": raw(A)}))
    assert sorted(response.outputs) == ["OUTPUT0", "OUTPUT1"]
    found = response.outputs["OUTPUT0"]
    assert (found.dtype, [dim.size for dim in found.tensor_shape.dim], list(found.int_val)) == (3, [2, 16], (A + A).reshape(-1).tolist())
    assert found.tensor_content == b""
    assert (response.model_spec.name, response.model_spec.version.value, response.model_spec.signature_name) == (
        "simple",
        1,
        "serving_default",
    )


@pytest.mark.parametrize("datatype", [*FIELDS, DataType.FP16, DataType.BF16, DataType.BYTES])
@pytest.mark.parametrize("is_raw", [True, False])
def test_every_element_type_round_trips(datatype: DataType, is_raw: bool):
    if datatype is DataType.BYTES and is_raw:
        return
    number = types_pb2.DataType.Value(NUMBERS.get(datatype.value, f"DT_{datatype.value}"))
    values: Any = [b"a", b"\xff"] if datatype is DataType.BYTES else np.array([1, 0]).astype(datatype.numpy)
    field = FIELDS.get(datatype, "string_val" if datatype is DataType.BYTES else "half_val")
    plain = values if datatype is DataType.BYTES else (values.view(np.uint16) if datatype is DataType.FP16 else values).tolist()
    made = tensor(np.empty((1, 2)), number, **({"tensor_content": values.tobytes()} if is_raw else {field: plain}))
    engine = FakeEngine(echo(datatype, (2,), name="m"))
    response = answered(engine, "Predict", predict({"INPUT": made}, "m"))
    assert engine.requests[0].inputs["INPUT"].reshape(-1).tolist() == list(values)
    assert list(getattr(response.outputs["OUTPUT"], field)) == plain
    assert response.outputs["OUTPUT"].dtype == number


def test_last_value_fills_all_missing_ones():
    engine = FakeEngine(echo(DataType.FP32, (2, 2), name="m"))
    answered(engine, "Predict", predict({"INPUT": tensor(np.empty((2, 2, 2)), 1, float_val=[1, 2, 3])}, "m"))
    assert engine.requests[0].inputs["INPUT"].reshape(-1).tolist() == [1, 2, 3, 3, 3, 3, 3, 3]


def test_large_tensors_are_views_of_the_message_and_encoded_off_the_loop():
    values = np.random.default_rng(1).standard_normal((2, 300_000)).astype(np.float32)
    made = tensor(values, types_pb2.DT_FLOAT, tensor_content=values.tobytes())
    response = answered(FakeEngine(echo(DataType.FP32)), "Predict", predict({"INPUT": made}, "echo_fp32", output_filter=["OUTPUT"]))
    np.testing.assert_array_equal(np.array(response.outputs["OUTPUT"].float_val, np.float32).reshape(2, -1), values)


def test_output_filter_returns_only_the_named_outputs():
    request = predict({"INPUT0": raw(A), "INPUT1": raw(A)}, output_filter=["OUTPUT1"])
    assert list(answered(FakeEngine(simple()), "Predict", request).outputs) == ["OUTPUT1"]


def refusal(engine: FakeEngine, name: str, request: Any, limits: Limits | None = None, **options: Any) -> ServingError:
    with pytest.raises(ServingError) as caught:
        answered(engine, name, request, limits, **options)
    return caught.value


def spec(**fields: Any) -> predict_pb2.PredictRequest:
    request = predict({"INPUT0": raw(A), "INPUT1": raw(A)}, **{key: value for key, value in fields.items() if key == "name"})
    for key, value in fields.items():
        if key == "version":
            request.model_spec.version.value = value
        else:
            setattr(request.model_spec, key, value)
    return request


BOTH = "{INPUT0,INPUT1}"
REFUSALS: list[tuple[Any, type[ServingError], int, str]] = [
    (b"\x08", InvalidRequest, 3, "not a valid PredictRequest"),
    (spec(name="ghost"), NotFound, 5, "Servable not found for request: Latest(ghost)"),
    (spec(version=9), NotFound, 5, "Servable not found for request: Specific(simple, 9)"),
    (spec(name=""), InvalidRequest, 3, "ModelSpec has no name"),
    (spec(version_label="beta"), InvalidRequest, 3, "Unrecognized servable version label: beta"),
    (spec(signature_name="x"), FailedPrecondition, 9, 'Serving signature key "x" not found.'),
    (
        predict({"INPUT0": raw(A)}),
        InvalidRequest,
        3,
        f"1!=2 len({{INPUT0}}) != len({BOTH}). Sent extra: {{}}. Missing but required: {{INPUT1}}.",
    ),
    (
        predict({"INPUT0": raw(A), "x": raw(A)}),
        InvalidRequest,
        3,
        f"alias not found in signature: x. Inputs expected to be in the set {BOTH}.",
    ),
    (
        predict({"INPUT0": raw(A), "INPUT1": raw(A)}, output_filter=["y"]),
        InvalidRequest,
        3,
        "output tensor alias not found in signature: y",
    ),
    (
        predict({"INPUT0": raw(A), "INPUT1": raw(A)}, output_filter=["OUTPUT0", "OUTPUT0"]),
        InvalidRequest,
        3,
        "duplicate output tensor alias",
    ),
    (predict({"INPUT0": raw(A), "INPUT1": tensor(A, 1, float_val=[1])}), InvalidRequest, 3, "to be int32 but float is provided"),
    (predict({"INPUT0": raw(A), "INPUT1": tensor(A, 99)}), InvalidRequest, 3, "but 99 is provided"),
    (predict({"INPUT0": raw(A), "INPUT1": tensor(A, 3)}), InvalidRequest, 3, "takes 32 values in int_val, not 0"),
    (predict({"INPUT0": raw(A), "INPUT1": tensor(A, 3, tensor_content=b"123")}), InvalidRequest, 3, "128 bytes of tensor_content, not 3"),
    (predict({"INPUT0": raw(A), "INPUT1": raw(A[:1])}), InvalidRequest, 3, "batch size"),
    (predict({"INPUT0": raw(A), "INPUT1": raw(A[0])}), InvalidRequest, 3, "unexpected shape"),
]


@pytest.mark.parametrize(("request_", "kind", "code", "text"), REFUSALS, ids=[text[:30] for *_, text in REFUSALS])
def test_invalid_predict_request_is_refused_with_its_reason(request_: Any, kind: type[ServingError], code: int, text: str):
    error = refusal(FakeEngine(simple()), "Predict", request_)
    assert isinstance(error, kind)
    assert text in error.message
    assert tfs_status(error).grpc == code


def test_one_value_cannot_fill_more_than_the_request_limit():
    made = tensor(np.empty((1, 2, 2)), types_pb2.DT_FLOAT, float_val=[1])
    made.tensor_shape.dim[1].size = 1 << 40
    error = refusal(FakeEngine(echo(DataType.FP32, (-1, 2), name="m")), "Predict", predict({"INPUT": made}, "m"))
    assert isinstance(error, TooLarge)


def test_labels_are_resolved_by_the_operators_list():
    found = simple()
    found.versions, found.version_labels = (2, 7), {"stable": 2}
    engine = FakeEngine(found)
    assert answered(engine, "Predict", spec(version_label="stable")).model_spec.version.value == 2
    assert engine.requests[0].model_version == 2


def test_metadata_has_the_form_that_perf_analyzer_reads():
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "simple"
    response = answered(FakeEngine(simple()), "GetModelMetadata", request)
    assert response.metadata["signature_def"].type_url == "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    found = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(found)
    default = found.signature_def["serving_default"]
    assert [dim.size for dim in default.inputs["INPUT0"].tensor_shape.dim] == [-1, 16]
    assert (default.inputs["INPUT0"].dtype, default.outputs["OUTPUT1"].name) == (types_pb2.DT_INT32, "OUTPUT1:0")


@pytest.mark.parametrize(
    ("fields", "text"),
    [([], "must specify at least one metadata_field"), (["other"], "Metadata field other is not supported")],
)
def test_unknown_metadata_fields_are_refused(fields: list[str], text: str):
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=fields)
    request.model_spec.name = "simple"
    assert text in refusal(FakeEngine(simple()), "GetModelMetadata", request).message
    assert refusal(FakeEngine(), "GetModelMetadata", get_model_metadata_pb2.GetModelMetadataRequest()).message == "Missing ModelSpec"


def test_status_reports_the_states_of_all_versions():
    found = simple()
    found.versions = (2, 7)
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "simple"
    response = answered(FakeEngine(found), "GetModelStatus", request)
    assert [(each.version, each.state, each.status.error_code) for each in response.model_version_status] == [(7, 30, 0), (2, 30, 0)]
    assert refusal(FakeEngine(), "GetModelStatus", request).message == "Could not find any versions of model simple"


def regressor() -> FakeModel:
    of = signature(
        [TensorSpec("x", DataType.FP32, (2,)), TensorSpec("n", DataType.INT64, (1,), optional=True)], [TensorSpec("y", DataType.FP32, (1,))]
    )
    return model("m", of, lambda given: {"y": given["x"].sum(axis=1, keepdims=True)})


def with_examples(request: Any) -> Any:
    context = request.input.example_list_with_context.context
    context.features.feature["x"].float_list.value.extend([1, 2])
    for values in ((), (3, 4)):
        example = request.input.example_list_with_context.examples.add()
        example.features.feature["n"].int64_list.value.append(1)
        if values:
            example.features.feature["x"].float_list.value.extend(values)
    return request


def test_examples_are_regressed_and_classified_at_once():
    engine = FakeEngine(regressor())
    request = regression_pb2.RegressionRequest()
    request.model_spec.name = "m"
    response = answered(engine, "Regress", with_examples(request))
    assert [each.value for each in response.result.regressions] == [3.0, 7.0]
    assert response.model_spec.version.value == 1
    assert engine.requests[0].inputs["n"].tolist() == [[1], [1]]

    both = inference_pb2.MultiInferenceRequest()
    for method in ("classify", "regress"):
        both.tasks.add(method_name=f"tensorflow/serving/{method}").model_spec.name = "m"
    response = answered(engine, "MultiInference", with_examples(both))
    assert [each.WhichOneof("result") for each in response.results] == ["classification_result", "regression_result"]
    assert [each.classes[0].score for each in response.results[0].classification_result.classifications] == [3.0, 7.0]


def test_incompatible_tasks_are_refused():
    both = inference_pb2.MultiInferenceRequest()
    assert "at least one task" in refusal(FakeEngine(), "MultiInference", both).message
    for name in ("m", "n"):
        both.tasks.add(method_name="tensorflow/serving/regress").model_spec.name = name
    assert "must access the same model name: m" in refusal(FakeEngine(), "MultiInference", both).message
    both.tasks[1].model_spec.name = "m"
    assert "Duplicate evaluation of signature" in refusal(FakeEngine(), "MultiInference", both).message
    both.tasks[1].method_name = "tensorflow/serving/predict"
    assert isinstance(refusal(FakeEngine(), "MultiInference", both), Unsupported)


def test_request_without_examples_is_an_error():
    request = classification_pb2.ClassificationRequest()
    request.model_spec.name = "m"
    assert refusal(FakeEngine(regressor()), "Classify", request).message == "Input is empty."


def test_many_empty_examples_are_counted_before_they_are_parsed():
    request = b"\x12\x80\x80\x04\x0a\xfd\xff\x03" + b"\x0a\x00" * 32_766
    engine = FakeEngine(regressor(), budget_bytes=1 << 20)
    assert "no room" in refusal(engine, "Classify", request).message


def reload(*models: tuple[str, str]) -> model_management_pb2.ReloadConfigRequest:
    request = model_management_pb2.ReloadConfigRequest()
    request.config.model_config_list.SetInParent()
    for name, base_path in models:
        request.config.model_config_list.config.add(name=name, base_path=base_path, model_platform="tensorflow")
    return request


def test_list_of_models_is_accepted_if_the_operator_allows_it():
    engine = FakeEngine()
    response = answered(engine, "HandleReloadConfigRequest", reload(("a", "/models/a")), settings=TfsSettings(allow_reload=True))
    assert response.status.error_code == 0
    [[model]] = engine.lists
    assert (model.name, str(model.base_path), model.version_policy) == ("a", "/models/a", None)
    error = refusal(engine, "HandleReloadConfigRequest", reload())
    assert tfs_status(error).grpc == 7
    assert "--allow_model_reload" in error.message


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (model_management_pb2.ReloadConfigRequest(), "could not find model_config_list"),
        (reload(("a", "relative")), "Expected model a to have an absolute path"),
        (reload(("a", "/a"), ("a", "/b")), "Illegal to list model a multiple times"),
    ],
)
def test_invalid_lists_are_refused(request_: Any, text: str):
    settings = TfsSettings(allow_reload=True)
    assert text in refusal(FakeEngine(), "HandleReloadConfigRequest", request_, settings=settings).message


def test_model_that_fails_to_load_fails_the_reload():
    engine = FakeEngine()
    engine.load_error = ModelLoadError("model a: corrupt")
    error = refusal(engine, "HandleReloadConfigRequest", reload(("a", "/a")), settings=TfsSettings(allow_reload=True))
    assert (tfs_status(error).grpc, error.message) == (9, "model a: corrupt")
