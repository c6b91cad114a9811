"""tritonclient against ensembles in the forms of Triton's examples."""

import json
import queue
import sys

import numpy as np
import tritonclient.grpc as grpc_module
import tritonclient.http as http_module
from common_checks import A, B, Report, check_simple, expect_error, simple_inputs
from tritonclient.utils import InferenceServerException

report = Report()
http_address, grpc_address = sys.argv[1:3]
IMAGE = np.array([["2", "8", "4", "6"], ["9", "1", "1", "1"]], dtype=np.object_)


def counts(client, name):
    """Successful requests, and executions."""
    stats = client.get_inference_statistics(name)
    if not isinstance(stats, dict):
        from google.protobuf.json_format import MessageToDict

        stats = MessageToDict(stats, preserving_proto_field_name=True)
    [one] = stats["model_stats"]
    inference = one["inference_stats"]
    for part in ("queue", "compute_input", "compute_infer", "compute_output"):
        assert int(inference[part]["count"]) == int(inference["success"]["count"]), (name, part)
    return int(inference["success"]["count"]), int(one["execution_count"])


def strings(module, data):
    tensor = module.InferInput("IMAGE", list(data.shape), "BYTES")
    tensor.set_data_from_numpy(data)
    return [tensor]


def check_ensembles(client, module, kind):
    metadata = client.get_model_metadata("simple_ensemble")
    if kind == "grpc":
        config = client.get_model_config("simple_ensemble", as_json=True)["config"]
        assert (metadata.platform, list(metadata.versions)) == ("ensemble", ["1"])
        assert {tensor.name: list(tensor.shape) for tensor in metadata.inputs} == {"INPUT0": [-1, 16], "INPUT1": [-1, 16]}
    else:
        config = client.get_model_config("simple_ensemble")
        assert (metadata["platform"], metadata["versions"]) == ("ensemble", ["1"])
        assert {tensor["name"]: tensor["shape"] for tensor in metadata["outputs"]} == {"OUTPUT0": [-1, 16], "OUTPUT1": [-1, 16]}
    steps = config["ensemble_scheduling"]["step"]
    assert [(step["model_name"], int(step["model_version"])) for step in steps] == [("nop", -1), ("add_sub", -1)]
    assert steps[1]["input_map"] == {"INPUT0": "a", "INPUT1": "b"}
    assert client.is_model_ready("simple_ensemble")

    before = {name: counts(client, name)[0] for name in ("simple_ensemble", "nop", "add_sub")}
    result = client.infer("simple_ensemble", simple_inputs(module), request_id="one")
    check_simple(result)
    response = result.get_response()
    assert (response["id"] if kind == "http" else response.id) == "one"
    assert (response["model_name"] if kind == "http" else response.model_name) == "simple_ensemble"
    after = {name: counts(client, name)[0] for name in before}
    assert all(after[name] == before[name] + 1 for name in before), (before, after)

    # Optional outputs: only what is asked for comes back.
    result = client.infer("simple_ensemble", simple_inputs(module), outputs=[module.InferRequestedOutput("OUTPUT1")])
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B)
    assert result.as_numpy("OUTPUT0") is None

    # Strings between steps, labels at the end.
    result = client.infer("classify", strings(module, IMAGE))
    np.testing.assert_array_equal(result.as_numpy("PIXELS"), IMAGE.astype(np.float32) / 2)
    np.testing.assert_array_equal(result.as_numpy("CLASSIFICATION"), IMAGE.astype(np.float32)[:, :3] / 2)
    scores = counts(client, "scores")[0]
    result = client.infer("classify", strings(module, IMAGE), outputs=[module.InferRequestedOutput("PIXELS")])
    assert result.as_numpy("CLASSIFICATION") is None
    assert counts(client, "scores")[0] == scores, "a step that no requested output needs does not run"
    result = client.infer("classify", strings(module, IMAGE), outputs=[module.InferRequestedOutput("CLASSIFICATION", class_count=1)])
    assert [text.decode() for text in result.as_numpy("CLASSIFICATION").reshape(-1)] == ["4.000000:1:dog", "4.500000:0:cat"]

    # The error of a step names it; statistics count it.
    expect_error(
        lambda: client.infer("classify", strings(module, np.array([["1", "2", "x", "4"]], dtype=np.object_))),
        InferenceServerException,
        "in ensemble 'classify', step 'parse'",
    )
    expect_error(
        lambda: client.infer("simple_ensemble", simple_inputs(module, a=np.zeros((9, 16), np.int32), b=np.zeros((9, 16), np.int32))),
        InferenceServerException,
        "inference request batch-size must be <= 8 for 'simple_ensemble'",
    )

    # Times of the steps on request.
    result = client.infer("simple_ensemble", simple_inputs(module), parameters={"stoker_step_times": True})
    response = result.get_response()
    text = response["parameters"]["stoker_step_times"] if kind == "http" else response.parameters["stoker_step_times"].string_param
    times = json.loads(text)
    assert list(times) == ["nop", "add_sub"], times
    assert all(each.keys() == {"queue_us", "compute_us"} for each in times.values()), times

    # Sequences reach the step with the state.
    def ask(number, sequence_id, start=False, end=False):
        tensor = module.InferInput("IN", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.full((1, 1), number, np.float32))
        result = client.infer("summing", [tensor], sequence_id=sequence_id, sequence_start=start, sequence_end=end)
        return float(result.as_numpy("OUT")[0, 0])

    assert ask(1, 5, start=True) == 2
    assert ask(10, 6, start=True) == 20
    assert ask(2, 5) == 6
    assert ask(3, 5, end=True) == 12
    assert ask(1, 6, end=True) == 22
    expect_error(lambda: ask(1, 5), InferenceServerException, "in ensemble 'summing', step 'adding'", "must specify the START flag")
    report(kind)


for module, address, kind in ((http_module, http_address, "http"), (grpc_module, grpc_address, "grpc")):
    client = module.InferenceServerClient(address)
    check_ensembles(client, module, kind)
    client.close()


def numbers(values, delay_ms=None):
    tensors = [grpc_module.InferInput("IN", [len(values)], "INT32")]
    tensors[0].set_data_from_numpy(np.array(values, np.int32))
    if delay_ms is not None:
        tensors.append(grpc_module.InferInput("DELAY", [len(values)], "UINT32"))
        tensors[1].set_data_from_numpy(np.full(len(values), delay_ms, np.uint32))
    return tensors


client = grpc_module.InferenceServerClient(grpc_address)
assert client.get_model_config("counting", as_json=True)["config"]["model_transaction_policy"]["decoupled"]
answers = queue.Queue()
client.start_stream(callback=lambda result, error: answers.put((result, error)))
for values, delay_ms in ((list(range(50)), None), ([7, 8, 9], 1), ([], None)):
    client.async_stream_infer("counting", numbers(values, delay_ms), request_id="s", enable_empty_final_response=True)
    seen = []
    while True:
        result, error = answers.get(timeout=30)
        assert error is None, error
        response = result.get_response()
        seen += result.as_numpy("OUT").tolist() if response.outputs else []
        if response.parameters["triton_final_response"].bool_param:
            break
    assert seen == [100 + value for value in values], seen
for place in range(20):
    client.async_stream_infer("simple_ensemble", simple_inputs(grpc_module), request_id=str(place))
for place in range(20):
    result, error = answers.get(timeout=30)
    assert error is None, error
    assert result.get_response().id == str(place)
    check_simple(result)
client.stop_stream()
expect_error(lambda: client.infer("counting", numbers([1])), InferenceServerException, "decoupled")
client.close()
report("stream")
report.finish()
