import queue
import sys

import numpy as np
import tritonclient.grpc as module
from common_checks import (
    IMAGES,
    A,
    B,
    Report,
    check_config,
    check_digits,
    check_index,
    check_metadata,
    check_simple,
    check_statistics,
    expect_error,
    simple_inputs,
)  # fmt: skip
from tritonclient.utils import InferenceServerException

report = Report()
client = module.InferenceServerClient(sys.argv[1])
assert client.is_server_live()
assert client.is_server_ready()
assert client.is_model_ready("simple")
assert client.is_model_ready("simple", "1")
assert not client.is_model_ready("absent")
report("health")
server = client.get_server_metadata(as_json=True)
assert server["name"] == "stoker"
assert "statistics" in server["extensions"]
check_metadata(client.get_model_metadata("simple", as_json=True))
report("metadata")
check_config(client.get_model_config("simple", as_json=True)["config"])
report("config")
check_index(client.get_model_repository_index(as_json=True)["models"])
report("index")

outputs = [module.InferRequestedOutput(name) for name in ("OUTPUT0", "OUTPUT1")]
result = client.infer("simple", simple_inputs(module), outputs=outputs, request_id="r2", client_timeout=30)
check_simple(result)
assert result.get_response().id == "r2"
assert result.get_response().model_version == "1"
check_simple(client.infer("simple", simple_inputs(module), priority=1, timeout=5_000_000, parameters={"mine": 1}))
report("infer-raw")
for algorithm in ("gzip", "deflate"):
    check_simple(client.infer("simple", simple_inputs(module), compression_algorithm=algorithm))
report("compression")

# Typed contents, which the Python client itself never sends: by the package's own messages.
import grpc  # noqa: E402
from tritonclient.grpc import service_pb2, service_pb2_grpc  # noqa: E402

channel = grpc.insecure_channel(sys.argv[1])
stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
typed = service_pb2.ModelInferRequest(model_name="simple")
for name, data in (("INPUT0", A), ("INPUT1", B)):
    tensor = typed.inputs.add(name=name, datatype="INT32", shape=list(data.shape))
    tensor.contents.int_contents.extend(data.flatten().tolist())
answer = stub.ModelInfer(typed)
np.testing.assert_array_equal(np.frombuffer(answer.raw_output_contents[0], np.int32).reshape(2, 16), A + B)
channel.close()
report("infer-typed")

answers = queue.Queue()
client.async_infer("simple", simple_inputs(module), lambda result, error: answers.put((result, error)))
result, error = answers.get(timeout=30)
assert error is None, error
check_simple(result)
report("async_infer")

client.start_stream(callback=lambda result, error: answers.put((result, error)))
for number in range(5):
    client.async_stream_infer("simple", simple_inputs(module), request_id=f"s{number}")
for number in range(5):
    result, error = answers.get(timeout=30)
    assert error is None, error
    check_simple(result)
    assert result.get_response().id == f"s{number}"
client.async_stream_infer("absent", simple_inputs(module), request_id="bad")
result, error = answers.get(timeout=30)
assert "absent" in str(error), error
client.async_stream_infer("simple", simple_inputs(module), request_id="after")
result, error = answers.get(timeout=30)
assert error is None, error
client.stop_stream()
report("stream")

image = module.InferInput("image", [3, 8, 8], "FP32")
image.set_data_from_numpy(IMAGES)
check_digits(client.infer("digits", [image]).as_numpy("scores"))
report("digits")
top = client.infer("digits", [image], outputs=[module.InferRequestedOutput("scores", class_count=3)]).as_numpy("scores")
assert top.shape == (3, 3), top.shape
report("classification")
check_statistics(client.get_inference_statistics("simple", as_json=True))
report("statistics")

expect_error(lambda: client.infer("absent", simple_inputs(module)), InferenceServerException, "NOT_FOUND", "unknown model")
expect_error(
    lambda: client.infer("simple", simple_inputs(module)[:1]), InferenceServerException, "INVALID_ARGUMENT", "expected 2 inputs but got 1"
)
report("errors")

client.unload_model("simple")
assert not client.is_model_ready("simple")
client.load_model("simple", config='{"max_batch_size": 2, "backend": "onnxruntime"}')
assert client.get_model_config("simple", as_json=True)["config"]["max_batch_size"] == 2
client.load_model("simple")
check_simple(client.infer("simple", simple_inputs(module)))
report("load-unload")
client.close()
report.finish()
