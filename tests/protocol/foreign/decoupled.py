"""tritonclient's streaming against a model with any number of responses for each request."""

import asyncio
import queue
import sys

import numpy as np
import tritonclient.grpc as module
import tritonclient.grpc.aio as aio
import tritonclient.http as http
from common_checks import Report, expect_error
from tritonclient.utils import InferenceServerException

report = Report()
grpc_address, http_address = sys.argv[1:3]


def inputs(values, delay_ms=0, of=module):
    tensors = [of.InferInput("IN", [len(values)], "INT32"), of.InferInput("DELAY", [len(values)], "UINT32")]
    tensors[0].set_data_from_numpy(np.array(values, np.int32))
    tensors[1].set_data_from_numpy(np.full(len(values), delay_ms, np.uint32))
    return tensors


client = module.InferenceServerClient(grpc_address)
assert client.get_model_config("repeat", as_json=True)["config"]["model_transaction_policy"]["decoupled"]
answers = queue.Queue()
client.start_stream(callback=lambda result, error: answers.put((result, error)))
client.async_stream_infer("repeat", inputs([4, 5, 6]), request_id="a")
for place, value in enumerate([4, 5, 6]):
    result, error = answers.get(timeout=30)
    assert error is None, error
    assert (result.as_numpy("OUT").tolist(), result.as_numpy("IDX").tolist()) == ([value], [place])
    assert result.get_response().id == "a"
client.async_stream_infer("repeat", inputs([7, 8]), request_id="b", enable_empty_final_response=True)
seen = []
while True:
    result, error = answers.get(timeout=30)
    assert error is None, error
    response = result.get_response()
    assert (response.id, response.model_name, response.model_version) == ("b", "repeat", "1")
    seen += [result.as_numpy("OUT").tolist()] if response.outputs else []
    if response.parameters["triton_final_response"].bool_param:
        break
assert seen == [[7], [8]], seen
client.async_stream_infer("repeat", inputs([]), request_id="c", enable_empty_final_response=True)
result, error = answers.get(timeout=30)
assert error is None, error
assert result.get_response().parameters["triton_final_response"].bool_param
assert not result.get_response().outputs
report("final")

# A long request holds up no other of its stream.
client.async_stream_infer("repeat", inputs([1, 2], 20_000), request_id="slow")
client.async_stream_infer("repeat", inputs([9]), request_id="quick")
result, error = answers.get(timeout=15)
assert error is None, error
assert result.get_response().id == "quick"
client.stop_stream(cancel_requests=True)
report("side-by-side")

client.start_stream(callback=lambda result, error: answers.put((result, error)))
while not answers.empty():
    answers.get()
many = list(range(5000))
client.async_stream_infer("repeat", inputs(many), request_id="many")
for value in many:
    result, error = answers.get(timeout=30)
    assert error is None, error
    assert result.as_numpy("OUT").tolist() == [value]
client.async_stream_infer("failing", inputs([1, 2, 3]), request_id="f")
result, error = answers.get(timeout=30)
assert error is None, error
result, error = answers.get(timeout=30)
assert "configured to fail at response 1" in str(error), error
client.async_stream_infer("repeat", inputs([3]), request_id="after")
result, error = answers.get(timeout=30)
assert error is None, error
client.stop_stream()
report("many-and-failures")

client.start_stream(callback=lambda result, error: answers.put((result, error)), headers={"triton_grpc_error": "true"})
client.async_stream_infer("failing", inputs([1, 2, 3]))
result, error = answers.get(timeout=30)
assert error is None, error
result, error = answers.get(timeout=30)
assert isinstance(error, InferenceServerException), error
assert "configured to fail" in str(error), error
assert error.status() == "StatusCode.INTERNAL", error.status()
client.stop_stream()
report("grpc-error")

refusal = "doesn't support models with decoupled transaction policy"
expect_error(lambda: client.infer("repeat", inputs([1])), InferenceServerException, refusal, "UNIMPLEMENTED")
web = http.InferenceServerClient(http_address)
expect_error(lambda: web.infer("repeat", inputs([1], of=http)), InferenceServerException, refusal, "501")
report("refused")
client.close()
web.close()


async def stream_with_aio():
    async with aio.InferenceServerClient(grpc_address) as client:

        async def requests():
            for number in range(3):
                yield {
                    "model_name": "repeat",
                    "inputs": inputs([number, number], of=aio),
                    "request_id": str(number),
                    "enable_empty_final_response": True,
                }

        finals = 0
        values = {}
        responses = client.stream_infer(requests())
        async for result, error in responses:
            assert error is None, error
            response = result.get_response()
            if response.outputs:
                values.setdefault(response.id, []).append(int(result.as_numpy("OUT")[0]))
            finals += response.parameters["triton_final_response"].bool_param
            if finals == 3:
                break
        assert values == {"0": [0, 0], "1": [1, 1], "2": [2, 2]}, values


asyncio.run(stream_with_aio())
report("aio")
report.finish()
