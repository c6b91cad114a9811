"""Every method of tritonclient's clients but those of settings and shared memory, which have checks of their own."""

import asyncio
import functools
import queue
import sys

import numpy as np
import tritonclient.grpc as grpc_module
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_module
import tritonclient.http.aio as http_aio
from common_checks import Report, check_simple, expect_error, simple_inputs
from tritonclient.utils import InferenceServerException

http_address, grpc_address = sys.argv[1:3]
#: Checked elsewhere.
OTHERS = ("shared_memory", "trace_settings", "log_settings")


def recording(cls):
    """A subclass of `cls` that notes which of its methods were called."""
    called = set()

    def wrap(name, function):
        @functools.wraps(function)
        def noting(*args, **kwargs):
            called.add(name)
            return function(*args, **kwargs)

        return noting

    names = [name for name in dir(cls) if not name.startswith("_") and callable(getattr(cls, name))]
    static_methods = {"generate_request_body", "parse_response_body"}
    made = type(cls.__name__, (cls,), {name: wrap(name, getattr(cls, name)) for name in names if name not in static_methods})
    wanted = {name for name in names if name not in static_methods and not any(other in name for other in OTHERS)}
    return made, lambda: wanted - called


class Plugin(grpc_module.InferenceServerClientPlugin):
    """Adds a header to every request."""

    calls = 0

    def __call__(self, request):
        Plugin.calls += 1
        request.headers["x-mine"] = "1"


def options():
    """Everything an infer may be given; made anew, because the HTTP clients write into the headers."""
    return {
        "request_id": "r",
        "sequence_id": 7,
        "sequence_start": True,
        "sequence_end": True,
        "priority": 1,
        "timeout": 5_000_000,
        "headers": {"x-other": "2"},
        "parameters": {"text": "x", "number": 1, "truth": True},
    }


CONFIG = '{"backend": "onnxruntime", "max_batch_size": 2}'
report = Report()


def outputs(module):
    return [module.InferRequestedOutput("OUTPUT1"), module.InferRequestedOutput("OUTPUT0")]


cls, left = recording(http_module.InferenceServerClient)
client = cls(http_address, concurrency=2, connection_timeout=30, network_timeout=30)
client.register_plugin(Plugin())
assert isinstance(client.plugin(), Plugin)
assert client.is_server_live(headers={"a": "b"}, query_params={"q": 1})
assert client.is_server_ready()
assert client.is_model_ready("simple", model_version="1")
assert {"name", "version", "extensions"} <= client.get_server_metadata().keys()
client.get_model_metadata("simple", model_version="1")
client.get_model_config("simple", model_version="1")
assert client.get_model_repository_index()
assert client.get_inference_statistics("simple", model_version="1")["model_stats"]
check_simple(client.infer("simple", simple_inputs(http_module), model_version="1", outputs=outputs(http_module), **options()))
check_simple(client.infer("simple", simple_inputs(http_module), sequence_id="by name", query_params={"q": 1}))
check_simple(client.async_infer("simple", simple_inputs(http_module), outputs=outputs(http_module), **options()).get_result(timeout=30))
body, length = http_module.InferenceServerClient.generate_request_body(simple_inputs(http_module), outputs=outputs(http_module))
answer = client._post(
    request_uri="v2/models/simple/infer", request_body=body, headers={"Inference-Header-Content-Length": length}, query_params=None
)
header_length = answer.get("Inference-Header-Content-Length")
check_simple(http_module.InferenceServerClient.parse_response_body(answer.read(), header_length=int(header_length)))
client.load_model("simple", config=CONFIG)
assert client.get_model_config("simple")["max_batch_size"] == 2
with open(sys.argv[3], "rb") as file:  # noqa: PTH123 - the client's own environment
    content = file.read()
client.load_model("simple", config='{"backend": "onnxruntime", "max_batch_size": 4}', files={"file:1/model.onnx": content})
assert client.get_model_config("simple")["max_batch_size"] == 4
check_simple(client.infer("simple", simple_inputs(http_module)))
client.unload_model("simple", unload_dependents=True)
assert not client.is_model_ready("simple")
client.load_model("simple")
expect_error(
    lambda: client.infer("simple", simple_inputs(http_module), parameters={"sequence_id": 1}), InferenceServerException, "reserved"
)
client.unregister_plugin()
client.close()
assert Plugin.calls
assert not left(), left()
report("http")

cls, left = recording(grpc_module.InferenceServerClient)
client = cls(grpc_address, keepalive_options=grpc_module.KeepAliveOptions(), channel_args=[("grpc.max_send_message_length", 1 << 30)])
client.register_plugin(Plugin())
assert isinstance(client.plugin(), Plugin)
assert client.is_server_live(headers={"a": "b"}, client_timeout=30)
assert client.is_server_ready()
assert client.is_model_ready("simple", model_version="1")
assert client.get_server_metadata().extensions
client.get_model_metadata("simple", model_version="1")
client.get_model_config("simple", model_version="1")
assert client.get_model_repository_index().models
assert client.get_inference_statistics("simple", model_version="1").model_stats
check_simple(
    client.infer("simple", simple_inputs(grpc_module), model_version="1", outputs=outputs(grpc_module), client_timeout=30, **options())
)
check_simple(client.infer("simple", simple_inputs(grpc_module), sequence_id="by name"))
answers = queue.Queue()
context = client.async_infer("simple", simple_inputs(grpc_module), lambda result, error: answers.put((result, error)), **options())
result, error = answers.get(timeout=30)
assert error is None, error
check_simple(result)
context.cancel()
client.start_stream(lambda result, error: answers.put((result, error)), stream_timeout=60, headers={"a": "b"}, compression_algorithm="gzip")
stream_options = {key: value for key, value in options().items() if key != "headers"}
client.async_stream_infer(
    "simple", simple_inputs(grpc_module), outputs=outputs(grpc_module), enable_empty_final_response=True, **stream_options
)
result, error = answers.get(timeout=30)
assert error is None, error
check_simple(result)
assert result.get_response().parameters["triton_final_response"].bool_param
client.stop_stream(cancel_requests=False)
client.load_model("simple", config=CONFIG)
client.load_model("simple", config='{"backend": "onnxruntime", "max_batch_size": 4}', files={"file:1/model.onnx": content})
assert client.get_model_config("simple").config.max_batch_size == 4
client.unload_model("simple", unload_dependents=True)
client.load_model("simple")
client.unregister_plugin()
client.close()
assert not left(), left()
report("grpc")


async def with_http():
    cls, left = recording(http_aio.InferenceServerClient)
    client = cls(http_address)
    client.register_plugin(Plugin())
    assert isinstance(client.plugin(), Plugin)
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("simple", model_version="1")
    assert (await client.get_server_metadata())["extensions"]
    await client.get_model_metadata("simple", model_version="1")
    await client.get_model_config("simple", model_version="1")
    assert await client.get_model_repository_index()
    assert (await client.get_inference_statistics())["model_stats"]
    for algorithm in (None, "gzip", "deflate"):
        result = await client.infer(
            "simple",
            simple_inputs(http_aio),
            outputs=outputs(http_aio),
            request_compression_algorithm=algorithm,
            response_compression_algorithm=algorithm,
            **options(),
        )
        check_simple(result)
    await client.unload_model("simple")
    await client.load_model("simple", config=CONFIG)
    await client.load_model("simple")
    client.unregister_plugin()
    await client.close()
    assert not left(), left()


async def with_grpc():
    cls, left = recording(grpc_aio.InferenceServerClient)
    client = cls(grpc_address)
    client.register_plugin(Plugin())
    assert isinstance(client.plugin(), Plugin)
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("simple", model_version="1")
    assert (await client.get_server_metadata()).extensions
    await client.get_model_metadata("simple", model_version="1")
    await client.get_model_config("simple", model_version="1")
    assert (await client.get_model_repository_index()).models
    assert (await client.get_inference_statistics()).model_stats
    for algorithm in (None, "gzip", "deflate"):
        check_simple(
            await client.infer("simple", simple_inputs(grpc_aio), outputs=outputs(grpc_aio), compression_algorithm=algorithm, **options())
        )

    async def requests():
        for number in range(3):
            yield {"model_name": "simple", "inputs": simple_inputs(grpc_aio), "request_id": str(number), "parameters": {"mine": number}}

    seen = [result.get_response().id async for result, error in client.stream_infer(requests(), stream_timeout=60) if error is None]
    assert seen == ["0", "1", "2"], seen
    await client.unload_model("simple")
    await client.load_model("simple", config=CONFIG)
    await client.load_model("simple")
    client.unregister_plugin()
    await client.close()
    assert not left(), left()


asyncio.run(with_http())
report("http-aio")
asyncio.run(with_grpc())
report("grpc-aio")

# Basic authentication is a plugin of the package's own.
from tritonclient.http.auth import BasicAuth  # noqa: E402

client = http_module.InferenceServerClient(http_address)
client.register_plugin(BasicAuth("user", "secret"))
assert client.is_server_live()
np.testing.assert_array_equal(client.infer("simple", simple_inputs(http_module)).as_numpy("OUTPUT0").shape, (2, 16))
client.close()
report("auth")
report.finish()
