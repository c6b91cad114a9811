"""The SDK's messages: real classes, in a pool of their own."""

from google.protobuf import descriptor_pool, text_format

from stoker.server.pb import grpc_service_pb2, model_config_pb2
from stoker.server.pb.adlik import model_pb2, operate_pb2, predict_pb2
from stoker.server.pb.tensorflow.core.framework import tensor_pb2, tensor_shape_pb2, types_pb2
from stoker.server.pb.tensorflow.core.protobuf import meta_graph_pb2
from stoker.server.pb.tensorflow_serving.apis import get_model_metadata_pb2
from stoker.server.pb.tensorflow_serving.apis import model_pb2 as serving_model_pb2
from stoker.server.pb.tensorflow_serving.apis import predict_pb2 as serving_predict_pb2
from stoker_client._pb import adlik_messages, tfs_messages
from stoker_client._pb import messages as pb


def test_every_server_message_and_enum_has_a_client_twin() -> None:
    for file in (model_config_pb2.DESCRIPTOR, grpc_service_pb2.DESCRIPTOR):
        for name, theirs in file.message_types_by_name.items():
            assert getattr(pb, name).DESCRIPTOR.full_name == theirs.full_name
        for name in file.enum_types_by_name:
            assert getattr(pb, name).items() == getattr(model_config_pb2, name).items()


def test_client_messages_are_not_in_the_default_pool() -> None:
    ours = pb.ModelInferRequest.DESCRIPTOR
    assert ours is not descriptor_pool.Default().FindMessageTypeByName("inference.ModelInferRequest")
    assert ours is pb.POOL.FindMessageTypeByName("inference.ModelInferRequest")


def test_messages_pass_between_client_and_server_as_bytes() -> None:
    request = pb.ModelInferRequest(model_name="digits", id="7")
    request.inputs.add(name="image", datatype="FP32", shape=[1, 8, 8])
    request.inputs[0].parameters["binary_data_size"].int64_param = 256
    arrived = grpc_service_pb2.ModelInferRequest.FromString(request.SerializeToString())
    assert text_format.MessageToString(arrived) == text_format.MessageToString(request)


def test_nested_messages_and_enum_values_are_reachable_by_name() -> None:
    assert pb.ModelInferRequest.InferInputTensor(name="a").name == "a"
    assert pb.ModelInstanceGroup.KIND_CPU == 2
    assert pb.DataType.Name(pb.TYPE_FP32) == "TYPE_FP32"


def test_adlik_messages_have_twins_in_their_own_pool() -> None:
    for module in (model_pb2, operate_pb2, predict_pb2, tensor_pb2, tensor_shape_pb2, types_pb2):
        for name, theirs in module.DESCRIPTOR.message_types_by_name.items():
            ours = getattr(adlik_messages, name).DESCRIPTOR
            assert ours is adlik_messages.POOL.FindMessageTypeByName(theirs.full_name)
            assert ours is not theirs
        for name in module.DESCRIPTOR.enum_types_by_name:
            assert getattr(adlik_messages, name).items() == getattr(module, name).items()
    assert adlik_messages.DT_FLOAT == types_pb2.DT_FLOAT


def test_google_messages_are_usable_within_adliks() -> None:
    request = adlik_messages.PredictRequest(model_spec={"name": "digits"}, batch_size=2)
    request.model_spec.version.value = 2**40
    arrived = predict_pb2.PredictRequest.FromString(request.SerializeToString())
    assert arrived.model_spec.version.value == 2**40
    assert text_format.MessageToString(arrived) == text_format.MessageToString(request)


def test_tensorflow_serving_messages_have_twins_in_their_own_pool() -> None:
    for module in (serving_predict_pb2, serving_model_pb2, get_model_metadata_pb2, meta_graph_pb2, tensor_pb2, types_pb2):
        for name, theirs in module.DESCRIPTOR.message_types_by_name.items():
            ours = getattr(tfs_messages, name).DESCRIPTOR
            assert ours is tfs_messages.POOL.FindMessageTypeByName(theirs.full_name)
            assert ours is not theirs
    request = tfs_messages.PredictRequest(model_spec={"name": "digits"}, output_filter=["y"])
    request.model_spec.version.value = 2**40
    arrived = serving_predict_pb2.PredictRequest.FromString(request.SerializeToString())
    assert text_format.MessageToString(arrived) == text_format.MessageToString(request)
