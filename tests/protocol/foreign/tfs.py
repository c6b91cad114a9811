"""A client of TensorFlow Serving, from the published messages and stubs, without TensorFlow; prints each passed check.

`tensorflow-serving-api` is the published client; it takes TensorFlow's own messages from `tensorflow-protobuf`, which lacks one small file.
"""

import importlib
import sys
import types
from typing import Any

import grpc
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool


def supply_error_codes() -> None:
    """Creates the module that `tensorflow-protobuf` lacks: `tensorflow.core.protobuf.error_codes_pb2` imports it."""
    names = (
        "OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED RESOURCE_EXHAUSTED "
        "FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS UNAUTHENTICATED"
    )
    file = descriptor_pb2.FileDescriptorProto(name="tensorflow/tsl/protobuf/error_codes.proto", package="tensorflow.error", syntax="proto3")
    codes = file.enum_type.add(name="Code")
    for number, name in enumerate(names.split()):
        codes.value.add(name=name, number=number)
    for parent in ("tensorflow.tsl", "tensorflow.tsl.protobuf"):
        sys.modules[parent] = types.ModuleType(parent)
    module: Any = types.ModuleType("tensorflow.tsl.protobuf.error_codes_pb2")
    module.DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
    sys.modules["tensorflow.tsl.protobuf.error_codes_pb2"] = module
    sys.modules["tensorflow.tsl.protobuf"].error_codes_pb2 = module  # type: ignore[attr-defined]
    # The newer client looks for it under a newer TensorFlow's name.
    importlib.import_module("tensorflow.core.protobuf.error_codes_pb2").xla_dot_tsl_dot_protobuf_dot_error__codes__pb2 = module


supply_error_codes()

from tensorflow.core.framework import types_pb2  # noqa: E402
from tensorflow_serving.apis import (  # noqa: E402
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

IMAGES = (np.arange(128, dtype=np.float32) % 17).reshape(2, 8, 8)


class Judge:
    """Sends requests to one server. `model` and `other` are its models: digits under two names."""

    def __init__(self, address: str) -> None:
        channel = grpc.insecure_channel(address)
        self.predictions = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        self.models = model_service_pb2_grpc.ModelServiceStub(channel)

    def predict(self, model: str = "digits", **spec: Any) -> predict_pb2.PredictResponse:
        return self.predictions.Predict(request(model, **spec), timeout=20)


def request(model: str, content: bool = True, **spec: Any) -> predict_pb2.PredictRequest:
    made = predict_pb2.PredictRequest()
    made.model_spec.name = model
    for key, value in spec.items():
        if key == "version":
            made.model_spec.version.value = value
        else:
            setattr(made.model_spec, key, value)
    tensor = made.inputs["image"]
    tensor.dtype = types_pb2.DT_FLOAT
    for size in IMAGES.shape:
        tensor.tensor_shape.dim.add(size=size)
    if content:
        tensor.tensor_content = IMAGES.tobytes()
    else:
        tensor.float_val.extend(IMAGES.reshape(-1).tolist())
    return made


def refused(call: Any, message: Any) -> tuple[str, str]:
    try:
        call(message, timeout=20)
    except grpc.RpcError as error:
        return error.code().name, error.details()
    raise AssertionError("the call was answered")


def check_predict(judge: Judge) -> None:
    answer = judge.predict()
    scores = answer.outputs["scores"]
    assert scores.dtype == types_pb2.DT_FLOAT
    assert [dim.size for dim in scores.tensor_shape.dim] == [2, 10]
    assert abs(sum(scores.float_val) - 2) < 1e-4
    assert (answer.model_spec.name, answer.model_spec.version.value, answer.model_spec.signature_name) == ("digits", 1, "serving_default")
    typed = judge.predictions.Predict(request("digits", content=False), timeout=20)
    assert typed.outputs["scores"] == scores
    filtered = request("digits", signature_name="serving_default", version=1)
    filtered.output_filter.append("scores")
    assert judge.predictions.Predict(filtered, timeout=20).outputs["scores"] == scores
    for model in ("digits_ipu", "digits_gcu"):
        best = np.array(judge.predict(model).outputs["scores"].float_val).reshape(2, 10).argmax(axis=1)
        assert best.tolist() == np.array(scores.float_val).reshape(2, 10).argmax(axis=1).tolist()


def check_metadata(judge: Judge) -> None:
    asked = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    asked.model_spec.name = "digits"
    answer = judge.predictions.GetModelMetadata(asked, timeout=20)
    found = get_model_metadata_pb2.SignatureDefMap()
    assert answer.metadata["signature_def"].Unpack(found)
    default = found.signature_def["serving_default"]
    assert default.method_name == "tensorflow/serving/predict"
    assert [dim.size for dim in default.inputs["image"].tensor_shape.dim] == [-1, 8, 8]
    assert found.signature_def["classify"].method_name == "tensorflow/serving/classify"


def check_status(judge: Judge) -> None:
    asked = get_model_status_pb2.GetModelStatusRequest()
    asked.model_spec.name = "digits"
    [version] = judge.models.GetModelStatus(asked, timeout=20).model_version_status
    state = get_model_status_pb2.ModelVersionStatus.State.Name(version.state)
    assert (version.version, state, version.status.error_code) == (1, "AVAILABLE", 0)


def with_examples(asked: Any) -> Any:
    for image in IMAGES:
        example = asked.input.example_list.examples.add()
        example.features.feature["image"].float_list.value.extend(image.reshape(-1).tolist())
    return asked


def check_classify(judge: Judge) -> None:
    asked = classification_pb2.ClassificationRequest()
    asked.model_spec.name = "digits"
    answer = judge.predictions.Classify(with_examples(asked), timeout=20)
    first = answer.result.classifications[0].classes
    assert [each.label for each in first][:3] == ["zero", "one", "two"]
    scores = judge.predict().outputs["scores"].float_val
    assert [each.score for each in first] == list(scores[:10])
    both = inference_pb2.MultiInferenceRequest()
    both.tasks.add(method_name="tensorflow/serving/classify").model_spec.name = "digits"
    results = judge.predictions.MultiInference(with_examples(both), timeout=20).results
    assert results[0].classification_result == answer.result
    regress = regression_pb2.RegressionRequest()
    regress.model_spec.name = "digits"
    code, text = refused(judge.predictions.Regress, with_examples(regress))
    assert code == "FAILED_PRECONDITION"
    assert "one number a sample" in text


def check_refusals(judge: Judge) -> None:
    predict = judge.predictions.Predict
    assert refused(predict, request("ghost")) == ("NOT_FOUND", "Servable not found for request: Latest(ghost)")
    assert refused(predict, request("digits", version=9)) == ("NOT_FOUND", "Servable not found for request: Specific(digits, 9)")
    assert refused(predict, request("digits", version_label="x")) == ("INVALID_ARGUMENT", "Unrecognized servable version label: x")
    code, text = refused(predict, request("digits", signature_name="x"))
    assert (code, text) == ("FAILED_PRECONDITION", 'Serving signature key "x" not found.')
    nothing = predict_pb2.PredictRequest()
    nothing.model_spec.name = "digits"
    code, text = refused(predict, nothing)
    assert code == "INVALID_ARGUMENT"
    assert "Missing but required: {image}" in text


def check_no_reload(judge: Judge) -> None:
    code, text = refused(judge.models.HandleReloadConfigRequest, model_management_pb2.ReloadConfigRequest())
    assert code == "PERMISSION_DENIED"
    assert "--allow_model_reload" in text


def check_reload(judge: Judge, folder: str) -> None:
    """A list of one's own: the model under another name, then with a second version and a canary label."""

    def listed(name: str, labels: dict[str, int], *versions: int, path: str = folder) -> model_management_pb2.ReloadConfigRequest:
        asked = model_management_pb2.ReloadConfigRequest()
        config = asked.config.model_config_list.config.add(name=name, base_path=path, model_platform="tensorflow")
        config.model_version_policy.specific.versions.extend(versions)
        for label, version in labels.items():
            config.version_labels[label] = version
        return asked

    reload = judge.models.HandleReloadConfigRequest
    assert reload(listed("renamed", {"stable": 1}, 1), timeout=20).status.error_code == 0
    assert refused(judge.predictions.Predict, request("digits"))[0] == "NOT_FOUND"
    assert judge.predict("renamed", version_label="stable").model_spec.version.value == 1
    reload(listed("renamed", {"stable": 1, "canary": 2}, 1, 2), timeout=20)
    assert judge.predict("renamed").model_spec.version.value == 2
    assert judge.predict("renamed", version_label="canary").model_spec.version.value == 2
    code, text = refused(reload, listed("renamed", {"stable": 7}, 1, 2))
    assert (code, "assign label to version 7" in text) == ("FAILED_PRECONDITION", True)
    assert judge.predict("renamed", version_label="stable").model_spec.version.value == 1
    assert refused(reload, listed("x", {}, 1, path="/etc"))[0] == "PERMISSION_DENIED"


def main() -> None:
    judge = Judge(sys.argv[1])
    if len(sys.argv) > 2:
        check_reload(judge, sys.argv[2])
        print("reload")
        return
    for check in (check_predict, check_metadata, check_status, check_classify, check_refusals, check_no_reload):
        check(judge)
        print(check.__name__.removeprefix("check_"))


main()
