"""tritonclient against models in Python that are executed several times for a request."""

import queue
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import tritonclient.grpc as module
import tritonclient.http as http
from common_checks import Report, expect_error
from tritonclient.utils import InferenceServerException

report = Report()
grpc_address, http_address, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
client = module.InferenceServerClient(grpc_address)
web = http.InferenceServerClient(http_address, concurrency=4)


def inputs(count, of=module, **more):
    tensors = []
    for name, value, kind in (("COUNT", count, "INT32"), *more.values()):
        tensor = of.InferInput(name, [1, 1], kind)
        tensor.set_data_from_numpy(np.array([[value]], np.object_ if kind == "BYTES" else np.int32))
        tensors.append(tensor)
    return tensors


def tokens(count, of=module):
    return inputs(count, of, crash=("CRASH", -1, "INT32"), folder=("FOLDER", str(folder), "BYTES"))


def batches():
    """The request ids of the batches since the last call."""
    text = (folder / "batches").read_text()
    (folder / "batches").unlink()
    return text.splitlines()


def metric(name, model, labels=""):
    with urllib.request.urlopen(f"http://{http_address}/metrics") as response:
        text = response.read().decode()
    return int(text.partition(f'{name}{{model="{model}",{labels}version="1"}} ')[2].split()[0])


def until(is_so):
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


class Stream:
    """A stream of its own for each request."""

    def __init__(self, request_id, count):
        self.client = module.InferenceServerClient(grpc_address)
        self.answers = queue.Queue()
        self.client.start_stream(callback=lambda result, error: self.answers.put((result, error)))
        self.client.async_stream_infer("tokens", tokens(count), request_id=request_id, enable_empty_final_response=True)

    def next(self):
        """The tokens of the next response, and whether it is the last one."""
        result, error = self.answers.get(timeout=60)
        assert error is None, error
        response = result.get_response()
        return result.as_numpy("TOKENS")[0].tolist() if response.outputs else [], response.parameters["triton_final_response"].bool_param

    def rest(self):
        got, is_last = [], False
        while not is_last:
            tokens, is_last = self.next()
            got += tokens
        self.client.stop_stream()
        return got


for each, of in ((client, module), (web, http)):
    assert each.infer("all_tokens", tokens(5, of), request_id="x").as_numpy("TOKENS").tolist() == [[0, 1, 2, 3, 4]]
    assert batches() == ["x"] * 5
statistics = client.get_inference_statistics("all_tokens", as_json=True)["model_stats"][0]
assert (statistics["inference_count"], statistics["execution_count"]) == ("2", "10"), statistics
assert statistics["inference_stats"]["success"]["count"] == "2"
assert metric("nv_inference_request_success", "all_tokens") == 2
report("single")

assert Stream("s", 4).rest() == [0, 1, 2, 3]
assert batches() == ["s"] * 4
report("stream")

# B and C arrive while A is executed: they join its batches.
(folder / "hold").touch()
streams = {"a": Stream("a", 3)}
until((folder / "batches").exists)
for name, count in (("b", 2), ("c", 4)):
    streams[name] = Stream(name, count)
    until(lambda: metric("nv_inference_pending_request_count", "tokens") == len(streams) - 1)
(folder / "hold").unlink()
assert {name: stream.rest() for name, stream in streams.items()} == {"a": [0, 1, 2], "b": [0, 1], "c": [0, 1, 2, 3]}
assert batches() == ["a", "b c a", "b c a", "c", "c"]
report("interleaved")

# The same for requests with one response, of a model with the strategy `direct`.
(folder / "hold").touch()
first = web.async_infer("all_tokens", tokens(3, http), request_id="a")
until((folder / "batches").exists)
second = web.async_infer("all_tokens", tokens(1, http), request_id="b")
until(lambda: metric("nv_inference_pending_request_count", "all_tokens") == 1)
(folder / "hold").unlink()
assert [each.get_result().as_numpy("TOKENS").tolist() for each in (first, second)] == [[[0, 1, 2]], [[0]]]
assert batches() == ["a", "b a", "a"]
report("interleaved-single")

endless = Stream("endless", 1 << 30)
assert [endless.next()[0] for _ in range(3)] == [[0], [1], [2]]
before = metric("nv_inference_request_failure", "tokens", 'reason="CANCELED",')
endless.client.stop_stream(cancel_requests=True)
until(lambda: metric("nv_inference_request_failure", "tokens", 'reason="CANCELED",') == before + 1)
assert Stream("after", 2).rest() == [0, 1]
assert batches()[-1] == "after"
report("cancelled")

endless = Stream("late", 1 << 30)
assert endless.next()[0] == [0]
endless.client.stop_stream(cancel_requests=True)
call = module.InferenceServerClient(grpc_address)
expect_error(lambda: call.infer("all_tokens", tokens(1 << 30), client_timeout=0.5), InferenceServerException, "DEADLINE_EXCEEDED")
assert client.infer("all_tokens", tokens(2), request_id="after").as_numpy("TOKENS").tolist() == [[0, 1]]
assert batches()[-1] == "after"
report("deadline")

for each, of in ((client, module), (web, http)):
    assert each.infer("sum", inputs(10, of)).as_numpy("SUM").tolist() == [[55]]
    expect_error(
        lambda each=each, of=of: each.infer("refused", inputs(1, of)),
        InferenceServerException,
        "released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    )
    result = each.infer("sum", inputs(4, of), sequence_id=7, sequence_start=True, sequence_end=True)
    assert result.as_numpy("SUM").tolist() == [[10]]
    expect_error(
        lambda each=each, of=of: each.infer("sum", inputs(4, of), sequence_id=7), InferenceServerException, "must specify the START flag"
    )
report("state")
report.finish()
