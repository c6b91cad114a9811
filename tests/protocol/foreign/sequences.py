"""tritonclient's sequences against a model that sums the values of each sequence."""

import queue
import sys

import numpy as np
import tritonclient.grpc as grpc_module
import tritonclient.http as http_module
from common_checks import Report, expect_error
from tritonclient.utils import InferenceServerException

report = Report()
http_address, grpc_address = sys.argv[1:3]


def value(module, number, rows=1):
    tensor = module.InferInput("x", [rows, 1], "FP32")
    tensor.set_data_from_numpy(np.full((rows, 1), number, np.float32))
    return [tensor]


for module, address in ((http_module, http_address), (grpc_module, grpc_address)):
    client = module.InferenceServerClient(address)

    def ask(number, sequence_id, start=False, end=False, rows=1, client=client, module=module):
        result = client.infer("adding", value(module, number, rows), sequence_id=sequence_id, sequence_start=start, sequence_end=end)
        return float(result.as_numpy("y")[0, 0])

    metadata = client.get_model_metadata("adding")
    names = [tensor["name"] for tensor in metadata["inputs"]] if module is http_module else [tensor.name for tensor in metadata.inputs]
    assert names == ["x"], names
    assert ask(1, 5, start=True) == 1
    assert ask(10, 6, start=True) == 10
    assert ask(2, 5) == 3
    assert ask(20, 6, end=True) == 30
    assert ask(3, 5, end=True) == 6
    expect_error(lambda: ask(1, 5), InferenceServerException, "must specify the START flag on the first request of the sequence")
    expect_error(lambda: ask(1, 0, start=True), InferenceServerException, "must specify a non-zero or non-empty correlation ID")
    expect_error(lambda: ask(1, 7, start=True, rows=2), InferenceServerException, "must specify batch-size 1")
    client.close()
    report("http" if module is http_module else "grpc")

answers = queue.Queue()
client = grpc_module.InferenceServerClient(grpc_address)
client.start_stream(lambda result, error: answers.put((result, error)))
for place in range(20):
    for number in (1, 2, 3):
        client.async_stream_infer(
            "adding",
            value(grpc_module, number),
            request_id=f"{number}-{place}",
            sequence_id=number,
            sequence_start=place == 0,
            sequence_end=place == 19,
        )
for _ in range(60):
    result, error = answers.get(timeout=30)
    assert error is None, error
    number, place = map(int, result.get_response().id.split("-"))
    assert float(result.as_numpy("y")[0, 0]) == number * (place + 1)
client.stop_stream()
client.close()
report("stream")
report.finish()
