"""A decoupled model's response statistics, by tritonclient's gRPC stream."""

import queue
import sys

import numpy as np
import tritonclient.grpc as module

client = module.InferenceServerClient(sys.argv[1])
answers = queue.Queue()
client.start_stream(callback=lambda result, error: answers.put((result, error)))
inputs = []
for name, dtype, data in (("IN", "INT32", [1, 2, 3]), ("DELAY", "UINT32", [0, 0, 0]), ("WAIT", "UINT32", [0])):
    tensor = module.InferInput(name, [len(data)], dtype)
    tensor.set_data_from_numpy(np.array(data, {"INT32": np.int32, "UINT32": np.uint32}[dtype]))
    inputs.append(tensor)
client.async_stream_infer("repeat_int32", inputs, enable_empty_final_response=True)
result, error = answers.get(timeout=30)
# The last one with outputs may be the final one, or an empty one follows.
while error is None and not result.get_response().parameters["triton_final_response"].bool_param:
    result, error = answers.get(timeout=30)
client.stop_stream()
assert error is None, error
[model] = client.get_inference_statistics("repeat_int32", as_json=True)["model_stats"]
stats = model["response_stats"]
assert sorted(stats) == ["0", "1", "2", "3"], stats
assert [int(stats[key]["success"].get("count", 0)) for key in "0123"] == [1, 1, 1, 0], stats
assert [int(stats[key]["empty_response"].get("count", 0)) for key in "0123"] == [0, 0, 0, 1], stats
assert int(model["inference_stats"]["success"]["count"]) == 1, model
client.close()
sys.stdout.write("responses\n")
