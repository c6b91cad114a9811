"""Every data type through every flavour of tritonclient, binary and JSON, with values at the ends of its range, and empty tensors."""

import asyncio
import sys

import ml_dtypes
import numpy as np
import tritonclient.grpc as grpc_module
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_module
import tritonclient.http.aio as http_aio
from common_checks import Report, expect_error
from tritonclient.utils import InferenceServerException

http_address, grpc_address = sys.argv[1:3]
INTEGERS = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
FLOATS = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64, "BF16": ml_dtypes.bfloat16}


def values():
    yield "BOOL", np.array([[True, False, True]])
    for name in INTEGERS:
        dtype = np.dtype(name.lower())
        yield name, np.array([[np.iinfo(dtype).min, 0, np.iinfo(dtype).max]], dtype)
    for name, dtype in FLOATS.items():
        yield name, np.array([[-1.5, 0, 2.0**-10]], dtype)
    yield "BYTES", np.array([[b"", "käse".encode(), b"a" * 300]], dtype=np.object_)


#: Types that travel in JSON too.
IN_JSON = {"BOOL", *INTEGERS, "FP32", "FP64", "BYTES"}


def tensor(module, name, array, **options):
    made = module.InferInput("IN", list(array.shape), name)
    made.set_data_from_numpy(array, **options)
    return [made]


def check(name, array, result):
    found = result.as_numpy("OUT")
    assert found.shape == array.shape, (name, found.shape)
    if name == "BYTES":
        # From JSON the client gives text.
        found = np.array([each if isinstance(each, bytes) else each.encode() for each in found.reshape(-1)], dtype=np.object_).reshape(
            found.shape
        )
    else:
        assert found.dtype == array.dtype, (name, found.dtype)
    assert found.tobytes() == array.tobytes() if name != "BYTES" else found.tolist() == array.tolist(), (name, found)


def cases():
    """Model, type, array: the values themselves in two rows, and nothing at all."""
    for name, array in values():
        yield name, np.concatenate([array, array])
        yield name, array[:, :0]


def model(name):
    return f"echo_{name.lower()}"


report = Report()
client = http_module.InferenceServerClient(http_address)
for name, array in cases():
    for binary_in in (True, False):
        for binary_out in (True, False):
            if not (binary_in and binary_out) and name not in IN_JSON:
                continue
            outputs = [http_module.InferRequestedOutput("OUT", binary_data=binary_out)]
            check(name, array, client.infer(model(name), tensor(http_module, name, array, binary_data=binary_in), outputs=outputs))
for name in ("FP16", "BF16"):
    text = [http_module.InferRequestedOutput("OUT", binary_data=False)]
    array = np.zeros((1, 3), FLOATS[name])
    expect_error(
        lambda name=name, array=array, text=text: client.infer(model(name), tensor(http_module, name, array), outputs=text),
        InferenceServerException,
        f"sending {name} data via JSON is not supported",
    )
report("http")

# The form without a JSON part: the whole body is one tensor.
body = np.arange(5, dtype=np.float32).tobytes()
answer = client._post(
    request_uri=f"v2/models/{model('FP32')}/infer", request_body=body, headers={"Inference-Header-Content-Length": "0"}, query_params=None
)
length = int(answer.get("Inference-Header-Content-Length"))
assert answer.read()[length:] == body
report("http-raw")
client.close()

client = grpc_module.InferenceServerClient(grpc_address)
for name, array in cases():
    check(name, array, client.infer(model(name), tensor(grpc_module, name, array)))
report("grpc")

# Typed contents, which this client never sends: by the package's own messages.
import grpc  # noqa: E402
from tritonclient.grpc import service_pb2, service_pb2_grpc  # noqa: E402

FIELDS = {"BOOL": "bool", "INT64": "int64", "UINT64": "uint64", "FP32": "fp32", "FP64": "fp64", "BYTES": "bytes"}
with grpc.insecure_channel(grpc_address) as channel:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    for name, array in cases():
        if name in ("FP16", "BF16"):
            continue
        request = service_pb2.ModelInferRequest(model_name=model(name))
        field = FIELDS.get(name, "int" if name.startswith("INT") else "uint")
        getattr(request.inputs.add(name="IN", datatype=name, shape=array.shape).contents, f"{field}_contents").extend(
            array.reshape(-1).tolist()
        )
        check(name, array, grpc_module.InferResult(stub.ModelInfer(request)))
    for name, value in (("INT8", 128), ("INT16", -32769), ("UINT8", 256), ("UINT16", 65536)):
        request = service_pb2.ModelInferRequest(model_name=model(name))
        contents = request.inputs.add(name="IN", datatype=name, shape=[1, 1]).contents
        getattr(contents, "int_contents" if name.startswith("INT") else "uint_contents").append(value)
        expect_error(lambda request=request: stub.ModelInfer(request), grpc.RpcError, f"outside the range of {name}")
report("grpc-typed")
client.close()


async def main():
    async with http_aio.InferenceServerClient(http_address) as client:
        for name, array in cases():
            check(name, array, await client.infer(model(name), tensor(http_aio, name, array)))
    report("http-aio")
    async with grpc_aio.InferenceServerClient(grpc_address) as client:
        for name, array in cases():
            check(name, array, await client.infer(model(name), tensor(grpc_aio, name, array)))
    report("grpc-aio")


asyncio.run(main())

# Shapes: a scalar in the file is [1] to clients, reshapes hold both ways, optional inputs may be left out.
with http_module.InferenceServerClient(http_address) as client:
    [scalar] = client.get_model_metadata("scalar")["inputs"]
    assert [int(size) for size in scalar["shape"]] == [1], scalar
    result = client.infer("scalar", tensor(http_module, "FP32", np.array([2.5], np.float32)))
    assert result.as_numpy("OUT").tolist() == [2.5]
    flat = np.arange(12, dtype=np.float32).reshape(2, 6)
    result = client.infer("reshaped", tensor(http_module, "FP32", flat))
    np.testing.assert_array_equal(result.as_numpy("OUT"), flat.reshape(2, 3, 2))
report("shapes")

# Labels, and the bounds of classification.
with http_module.InferenceServerClient(http_address) as client, grpc_module.InferenceServerClient(grpc_address) as other:
    scores = np.array([[0.25, 3.0, -1.0]], np.float32)
    for module, asked in ((http_module, client), (grpc_module, other)):
        for count, expected in ((1, [[b"3.000000:1:dog"]]), (9, [[b"3.000000:1:dog", b"0.250000:0:cat", b"-1.000000:2"]])):
            outputs = [module.InferRequestedOutput("OUT", class_count=count)]
            found = asked.infer("labelled", tensor(module, "FP32", scores), outputs=outputs).as_numpy("OUT")
            assert found.tolist() == expected, found
report("labels")
report.finish()
