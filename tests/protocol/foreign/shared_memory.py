"""tritonclient's shared memory helpers with every flavour of its client: every datatype in and out, and the refusals."""

import os
import sys

import ml_dtypes
import numpy as np
import tritonclient.utils.shared_memory as shm
from client_flavours import Flavour
from common_checks import Report, expect_error
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

flavour, address = sys.argv[1:]
report, client = Report(), Flavour(flavour, address)
KEY = f"/judge_{os.getpid()}"
TYPES = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BF16": ml_dtypes.bfloat16,
}


def regions():
    status = client("get_system_shared_memory_status")
    return {region["name"]: region for region in (status if client.is_http else status.get("regions", {}).values())}


def infer(datatype, shape, size, *, output_at, output_size):
    tensor = client.module.InferInput("INPUT", shape, datatype)
    tensor.set_shared_memory("judge", size)
    output = client.module.InferRequestedOutput("OUTPUT")
    output.set_shared_memory("judge", output_size, output_at)
    return client("infer", f"echo_{datatype.lower()}", [tensor], outputs=[output])


metadata = client("get_server_metadata")
assert "system_shared_memory" in metadata["extensions"], metadata
client("unregister_system_shared_memory")
client("unregister_cuda_shared_memory")
assert regions() == {}
handle = shm.create_shared_memory_region("judge", KEY, 4096)
client("register_system_shared_memory", "judge", KEY, 4096)
region = regions()["judge"]
assert (region["key"], int(region.get("offset", 0)), int(region["byte_size"])) == (KEY, 0, 4096), region
expect_error(
    lambda: client("register_system_shared_memory", "judge", KEY, 4096),
    InferenceServerException,
    "shared memory region 'judge' already in manager",
)
report("register")

for datatype, kind in TYPES.items():
    array = np.array([[0, 1, 2, 3], [4, 5, 6, 7]]).astype(kind)
    shm.set_shared_memory_region(handle, [array])
    result = infer(datatype, [2, 4], array.nbytes, output_at=2048, output_size=array.nbytes)
    if client.is_http:
        output = result.get_output("OUTPUT")
        assert "parameters" not in output, output
        assert "data" not in output, output
    else:
        output = result.get_output("OUTPUT")
        assert output.parameters["shared_memory_region"].string_param == "judge", output
    found = shm.get_contents_as_numpy(handle, kind, [2, 4], offset=2048)
    np.testing.assert_array_equal(found.view(np.uint8), array.view(np.uint8))
report("datatypes")

strings = np.array([[b"", b"one"], [b"\x00\xff", b"a longer one"]], dtype=np.object_)
serialised = serialize_byte_tensor(strings)
shm.set_shared_memory_region(handle, [serialised])
size = len(serialised.item())
infer("BYTES", [2, 2], size, output_at=1000, output_size=3000)
np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.object_, [2, 2], offset=1000), strings)
report("strings")

array = np.arange(8, dtype=np.int32).reshape(2, 4)
shm.set_shared_memory_region(handle, [array])
mixed = client.module.InferInput("INPUT", [2, 4], "INT32")
mixed.set_shared_memory("judge", 32)
np.testing.assert_array_equal(client("infer", "echo_int32", [mixed]).as_numpy("OUTPUT"), array)
report("input-only")

expect_error(
    lambda: infer("INT32", [2, 4], 32, output_at=2048, output_size=31),
    InferenceServerException,
    "shared memory size specified with the request for output 'OUTPUT' (31 bytes) should be at least 32 bytes to hold the results",
)
expect_error(
    lambda: infer("INT32", [2, 4], 64, output_at=2048, output_size=64),
    InferenceServerException,
    "input byte size mismatch for input 'INPUT' for model 'echo_int32'. Expected 32, got 64",
)
expect_error(lambda: infer("INT32", [2, 4], 32, output_at=4096, output_size=32), InferenceServerException, "Invalid offset")
expect_error(lambda: infer("INT32", [2, 4], 32, output_at=4080, output_size=32), InferenceServerException, "Invalid offset + byte size")
expect_error(
    lambda: client("register_system_shared_memory", "bad", KEY, 4097),
    InferenceServerException,
    "failed to register shared memory region 'bad'",
)
expect_error(
    lambda: client("register_system_shared_memory", "bad", "/no_such_object", 1),
    InferenceServerException,
    "Unable to open shared memory region: '/no_such_object'",
)
expect_error(
    lambda: client("get_system_shared_memory_status", "bad"), InferenceServerException, "Unable to find system shared memory region: 'bad'"
)
report("refusals")

client("register_system_shared_memory", "second", KEY, 100, offset=28)
client("unregister_system_shared_memory", "judge")
assert set(regions()) == {"second"}
expect_error(
    lambda: infer("INT32", [2, 4], 32, output_at=2048, output_size=32),
    InferenceServerException,
    "Unable to find shared memory region: 'judge'",
)
client("unregister_system_shared_memory", "judge")
client("unregister_system_shared_memory")
assert regions() == {}
shm.destroy_shared_memory_region(handle)
report("unregister")

status = client("get_cuda_shared_memory_status")
assert (status if client.is_http else status.get("regions", {})) in ([], {}), status
expect_error(lambda: client("register_cuda_shared_memory", "c", b"AAAA", 0, 16), InferenceServerException, "GPUs not supported")
expect_error(
    lambda: client("get_cuda_shared_memory_status", "c"), InferenceServerException, "Unable to find cuda shared memory region: 'c'"
)
client("unregister_cuda_shared_memory", "c")
report("cuda")
client.close()
report.finish()
