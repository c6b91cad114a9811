"""tritonclient against models written in Python: Triton's published examples, rebuilt from its rules, and typed models."""

import json
import queue
import sys
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import tritonclient.grpc as module
import tritonclient.http as http
from common_checks import Report
from tritonclient.utils import InferenceServerException

report = Report()
grpc_address, http_address, folder = sys.argv[1:4]
client = module.InferenceServerClient(grpc_address)
web = http.InferenceServerClient(http_address)
A, B = np.arange(4, dtype=np.float32), np.ones(4, np.float32)


def tensors(values, of=module):
    made = []
    for name, array in values.items():
        kinds = {"f4": "FP32", "i4": "INT32", "u4": "UINT32", "i8": "INT64", "O": "BYTES"}
        tensor = of.InferInput(name, list(array.shape), kinds[array.dtype.str.lstrip("<|")])
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def text(*values):
    return np.array(values, dtype=np.object_)


def failure(model, values):
    """The status and the message of the error of a request over gRPC."""
    try:
        client.infer(model, tensors(values))
    except InferenceServerException as error:
        return error.status().removeprefix("StatusCode."), error.message()
    raise AssertionError(f"{model} has responded")


for each, of in ((client, module), (web, http)):
    result = each.infer("add_sub", tensors({"INPUT0": A, "INPUT1": B}, of))
    assert result.as_numpy("OUTPUT0").tolist() == (A + B).tolist()
    assert result.as_numpy("OUTPUT1").tolist() == (A - B).tolist()
    wanted = [of.InferRequestedOutput("OUTPUT1")]
    result = each.infer("add_sub", tensors({"INPUT0": A, "INPUT1": B}, of), outputs=wanted)
    assert result.as_numpy("OUTPUT0") is None
report("add_sub")

for name in ("bls_sync", "bls_async"):
    result = client.infer(name, tensors({"MODEL_NAME": text("add_sub"), "INPUT0": A, "INPUT1": B}))
    assert result.as_numpy("OUTPUT0").tolist() == (A + B).tolist()
    assert result.as_numpy("OUTPUT1").tolist() == (A - B).tolist()
    status, message = failure(name, {"MODEL_NAME": text("no_model"), "INPUT0": A, "INPUT1": B})
    assert "no_model" in message, message
    assert status == ("NOT_FOUND" if name == "bls_sync" else "INTERNAL"), status
for name, factor in (("bls_decoupled_sync", 1), ("bls_decoupled_async", 2)):
    assert client.infer(name, tensors({"IN": np.array([5], np.int32)})).as_numpy("SUM").tolist() == [25 * factor]
report("bls")

answers = queue.Queue()
client.start_stream(callback=lambda result, error: answers.put((result, error)))


def stream(name, values, **options):
    client.async_stream_infer(name, tensors(values), enable_empty_final_response=True, **options)
    found = []
    while True:
        result, error = answers.get(timeout=60)
        if error is not None:
            return found, error
        response = result.get_response()
        if response.outputs:
            found.append(result)
        if response.parameters["triton_final_response"].bool_param:
            return found, None


for count in (0, 1, 4, 100):
    found, error = stream("square_int32", {"IN": np.array([count], np.int32)})
    assert error is None, error
    assert [each.as_numpy("OUT").tolist() for each in found] == [[count]] * count
values = {"IN": np.array([4, 2, 0, 1], np.int32), "DELAY": np.array([1, 2, 3, 4], np.uint32), "WAIT": np.array([5], np.uint32)}
found, error = stream("repeat_int32", values, request_id="r")
assert error is None, error
assert [(each.as_numpy("OUT")[0], each.as_numpy("IDX")[0]) for each in found] == [(4, 0), (2, 1), (0, 2), (1, 3)]
assert {each.get_response().id for each in found} == {"r"}
found, error = stream("typed_stream", {"prompt": text("hi"), "times": np.array([3])})
assert [each.as_numpy("output")[0] for each in found] == [b"hi typed_stream 0", b"hi typed_stream 1", b"hi typed_stream 2"]
found, error = stream("tags_stream", {"IN": np.array([3], np.int32)})
assert error is None, error
assert [each.get_response().parameters["index"].int64_param for each in found] == [0, 1, 2]
client.stop_stream()
assert "decoupled transaction policy" in failure("square_int32", {"IN": np.array([2], np.int32)})[1]
report("decoupled")

tags = {"text": "é", "flag": True, "count": 1 << 40, "share": 0.5}
ones = np.ones(2, np.float32)
for prefix, values in (("", {"IN": ones}), ("inner_", {"MODEL_NAME": text("tags"), "IN": ones})):
    named = {f"{prefix}{key}": value for key, value in tags.items()}
    assert web.infer("tags", tensors(values, http)).get_response()["parameters"] == named
    given = client.infer("tags", tensors(values)).get_response().parameters
    assert {key: getattr(each, each.WhichOneof("parameter_choice")) for key, each in given.items()} == named
report("response-parameters")


def control(action, model, **values):
    """Whether the model is ready, after what another model does to it."""
    inputs = {"ACTION": text(action), "MODEL": text(model), **values}
    return bool(client.infer("control", tensors(inputs)).as_numpy("READY")[0])


assert control("ready", "typed_caller")
assert control("ready", "typed_caller:1")
assert not control("ready", "typed_caller:2")
assert not control("ready", "no_model")
assert not control("unload", "typed_caller")
assert not client.is_model_ready("typed_caller")
assert control("load", "typed_caller")
assert client.is_model_ready("typed_caller")
status, message = failure("control", {"ACTION": text("load"), "MODEL": text("no_model")})
assert "failed to load 'no_model'" in message, message
sent = {"ACTION": text("load"), "MODEL": text("sent"), "CONFIG": text(json.dumps({"backend": "python"}))}
status, message = failure("control", {**sent, "FILES": text("file:1/model.py", "import os")})
assert "--allow-python-models=on runs this too" in message, message
status, message = failure("control", {"ACTION": text("load"), "MODEL": text("sent"), "FILES": text("file:1/model.py", "import os")})
assert "'config' must be given along" in message, message
identity = {"backend": "identity", "input": [], "output": []}
for side in ("input", "output"):
    identity[side].append({"name": f"{side.upper()}0", "data_type": "TYPE_FP32", "dims": [2]})
values = {"CONFIG": text(json.dumps(identity)), "FILES": text("file:1/large", b"x" * 3_000_000)}
assert control("load", "sent", **values)
assert client.infer("sent", tensors({"INPUT0": ones})).as_numpy("OUTPUT0").tolist() == [1, 1]
assert not control("unload", "sent")
report("control")

for value in (1, 2.5):
    result = client.infer("metrics", tensors({"IN": np.array([value], np.float32)}))
    assert b"metric 'nv_inference_count' has a name of the server's own metrics" in result.as_numpy("ERROR")[0]


def metric_lines(start):
    with urllib.request.urlopen(f"http://{http_address}/metrics") as page:
        return [line for line in page.read().decode().splitlines() if line.startswith(start)]


def samples():
    """The metrics of the model: their values by name and labels, and which worker has them."""
    lines = metric_lines("sample_")
    return {line.split("{")[0].split(" ")[0]: (line, float(line.rsplit(" ", 1)[1])) for line in lines}


until = time.monotonic() + 60
while samples().get("sample_last", ("", 0))[1] != 2.5 and time.monotonic() < until:
    time.sleep(0.1)
shown = samples()
assert shown["sample_requests"][1] == 2, shown
assert 'kind="a"' in shown["sample_requests"][0]
assert 'model="sample"' in shown["sample_requests"][0]
buckets = [(line.split('le="')[1].split('"')[0], line.rsplit(" ", 1)[1]) for line in metric_lines("sample_sizes_bucket{")]
assert buckets == [("0.5", "0"), ("1.0", "1"), ("2.0", "1"), ("+Inf", "2")], buckets
assert (shown["sample_sizes_sum"][1], shown["sample_sizes_count"][1]) == (3.5, 2), shown
assert 'kind="b"' in shown["sample_sizes_count"][0]
assert metric_lines("# TYPE sample_sizes") == ["# TYPE sample_sizes histogram"]
if 'worker="' in shown["sample_last"][0]:
    assert 'worker="metrics_0"' in shown["sample_requests"][0]
    client.unload_model("metrics")
    while samples() and time.monotonic() < until:
        time.sleep(0.1)
    assert samples() == {}
report("metrics")

config = client.get_model_config("auto_batch", as_json=True)["config"]
assert config["max_batch_size"] == 4, config
assert [tensor["name"] for tensor in config["input"]] == ["INPUT0", "INPUT1"]
assert "dynamic_batching" in config
result = client.infer("auto_batch", tensors({"INPUT0": np.stack([A, A]), "INPUT1": np.stack([B, B])}))
assert result.as_numpy("OUTPUT0").tolist() == np.stack([A + B] * 2).tolist()
assert "4" in failure("auto_batch", {"INPUT0": np.zeros((5, 4), np.float32), "INPUT1": np.zeros((5, 4), np.float32)})[1]
report("auto-complete")

codes = {"INVALID_ARG": "INVALID_ARGUMENT", "NOT_FOUND": "NOT_FOUND", "UNAVAILABLE": "UNAVAILABLE", "UNSUPPORTED": "UNIMPLEMENTED"}
for code, status in {**codes, "INTERNAL": "INTERNAL"}.items():
    assert failure("errors", {"MODE": text(code).reshape(1, 1)}) == (status, f"code {code}")
for mode, message in (("raise", "ValueError: an error of the model"), ("shape", "of shape [1, 2]"), ("none", "returned None")):
    assert message in failure("errors", {"MODE": text(mode).reshape(1, 1)})[1]
assert client.infer("errors", tensors({"MODE": text("fine").reshape(1, 1)})).as_numpy("OUT")[0, 0] == "fineé".encode()
report("errors")

for sequence in (7, "seven"):
    sums = []
    for index, value in enumerate((1, 2, 3)):
        options = {"sequence_id": sequence, "sequence_start": index == 0, "sequence_end": index == 2}
        result = client.infer("sequence", tensors({"INPUT": np.array([[value]], np.int32)}), **options)
        sums.append(int(result.as_numpy("OUTPUT")[0, 0]))
    assert sums == [1, 3, 6], sums
report("sequence")

result = client.infer(
    "attributes", tensors({"ANY": np.zeros(1, np.int32)}), request_id="q1", priority=0, timeout=5_000_000, parameters={"k": "v", "n": 3}
)
found = json.loads(result.as_numpy("OUT")[0])
assert found.pop("timeout") == 5_000_000, found
expected = {
    "model_name": "attributes",
    "model_version": "1",
    "model_instance_kind": "CPU",
    "model_instance_name": "attributes_0",
    "id": "q1",
    "parameters": {"k": "v", "n": 3},
    "priority": 0,
    "inputs": ["ANY"],
    "wanted": ["OUT"],
    "file": "model.py",
}
assert found == expected, found
report("attributes")

# A client that reads one response and goes away: the model sees it, after no more responses than the buffers between hold.
done, sent = Path(folder) / "endless", Path(folder) / "endless.sent"
seen = threading.Event()
short = module.InferenceServerClient(grpc_address)
short.start_stream(callback=lambda result, error: seen.set())
short.async_stream_infer("endless", tensors({"FILE": text(str(done))}))
assert seen.wait(60)
short.stop_stream(cancel_requests=True)
until = time.monotonic() + 60
while not (done.exists() and done.read_text()) and time.monotonic() < until:
    time.sleep(0.05)
assert int(done.read_text()) >= 1
report("cancellation")

result = client.infer("typed_digits", tensors({"image": np.arange(128, dtype=np.float32).reshape(2, 8, 8)}))
assert result.as_numpy("scores").shape == (2, 10)
assert result.as_numpy("label").tolist() == [[9], [9]]
assert failure("typed_digits", {"image": np.full((1, 8, 8), -1, np.float32)}) == ("INVALID_ARGUMENT", "a pixel is negative")
assert client.infer("typed_caller", tensors({"x": A})).as_numpy("output").tolist() == (A * 2).tolist()
report("typed")
report.finish()
