import sys

import numpy as np
import tritonclient.http as module
from common_checks import (
    IMAGES,
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
server = client.get_server_metadata()
assert server["name"] == "stoker"
assert "binary_tensor_data" in server["extensions"]
check_metadata(client.get_model_metadata("simple"))
check_metadata(client.get_model_metadata("simple", "1"))
report("metadata")
check_config(client.get_model_config("simple"))
report("config")
check_index(client.get_model_repository_index())
report("index")

for binary_in in (True, False):
    for binary_out in (True, False):
        outputs = [module.InferRequestedOutput(name, binary_data=binary_out) for name in ("OUTPUT0", "OUTPUT1")]
        result = client.infer("simple", simple_inputs(module, binary_in), outputs=outputs, request_id="r1")
        check_simple(result)
        assert result.get_response()["id"] == "r1"
        report(f"infer-{'binary' if binary_in else 'json'}-{'binary' if binary_out else 'json'}")
check_simple(client.infer("simple", simple_inputs(module)))
check_simple(client.infer("simple", simple_inputs(module), model_version="1", priority=1, timeout=5_000_000, parameters={"mine": "x"}))
report("infer-defaults")
for algorithm in ("gzip", "deflate"):
    result = client.infer(
        "simple", simple_inputs(module), request_compression_algorithm=algorithm, response_compression_algorithm=algorithm
    )
    check_simple(result)
report("compression")
check_simple(client.async_infer("simple", simple_inputs(module)).get_result())
report("async_infer")

image = module.InferInput("image", [3, 8, 8], "FP32")
image.set_data_from_numpy(IMAGES)
check_digits(client.infer("digits", [image]).as_numpy("scores"))
report("digits")
top = client.infer("digits", [image], outputs=[module.InferRequestedOutput("scores", class_count=2)]).as_numpy("scores")
assert top.shape == (3, 2), top.shape
value, index, label = top[0][0].decode().split(":")
assert label == ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"][int(index)], (value, index, label)
report("classification")

check_statistics(client.get_inference_statistics("simple"))
assert len(client.get_inference_statistics()["model_stats"]) >= 2
report("statistics")

expect_error(lambda: client.infer("absent", simple_inputs(module)), InferenceServerException, "unknown model", "absent")
expect_error(lambda: client.infer("simple", simple_inputs(module), model_version="9"), InferenceServerException, "version 9")
expect_error(lambda: client.infer("simple", simple_inputs(module)[:1]), InferenceServerException, "expected 2 inputs but got 1 inputs")
too_many = simple_inputs(module, a=np.zeros((9, 16), np.int32), b=np.zeros((9, 16), np.int32))
expect_error(lambda: client.infer("simple", too_many), InferenceServerException, "batch-size must be <= 8 for 'simple'")
report("errors")

client.unload_model("simple")
assert not client.is_model_ready("simple")
expect_error(lambda: client.infer("simple", simple_inputs(module)), InferenceServerException, "simple")
client.load_model("simple")
assert client.is_model_ready("simple")
check_simple(client.infer("simple", simple_inputs(module)))
client.load_model("simple", config='{"max_batch_size": 4, "backend": "onnxruntime"}')
assert client.get_model_config("simple")["max_batch_size"] == 4
client.load_model("simple")
assert client.get_model_config("simple")["max_batch_size"] == 8
expect_error(lambda: client.load_model("absent"), InferenceServerException, "failed to load 'absent'")
report("load-unload")
client.close()
report.finish()
