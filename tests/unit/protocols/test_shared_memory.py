"""Client shared memory: registration, reading and writing, and memory removed by its client."""

import asyncio
import os
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.errors import AlreadyExists, InvalidRequest, NotFound, Overloaded, ServingError, TooLarge, Unsupported
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.shared_memory import SharedMemory
from stoker.server.codecs.tensors import array_to_bytes, object_array
from stoker.server.codecs.validation import SignatureChecks
from stoker.server.core.byte_budget import ByteBudget
from stoker.server.core.limits import Limits
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.kserve import http_codec
from stoker.server.protocols.kserve.extensions import Extensions
from stoker.server.protocols.kserve.grpc_codec import GrpcCodec
from stoker.server.protocols.kserve.inference import Inference
from stoker.server.protocols.kserve.service import KServeService
from stoker.server.protocols.kserve.shared_tensors import spans_of_head
from stoker.server.protocols.settings import KServeSettings
from tests.fakes.fake_engine import FakeEngine, echo, simple
from tests.fakes.message_calls import respond

LIMITS = Limits()


def memory(folder: Path, **options: Any) -> SharedMemory:
    return SharedMemory(options.pop("limits", LIMITS), is_allowed=options.pop("is_allowed", True), folder=folder)


def shm_object(folder: Path, content: bytes, name: str = "object") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def open_descriptors(folder: Path) -> int:
    """How many of this process lead into `folder`."""
    return sum(os.path.realpath(each).startswith(str(folder)) for each in Path("/proc/self/fd").iterdir())


def test_region_is_a_part_of_an_object(tmp_path: Path):
    shm_object(tmp_path, b"0123456789")
    table = memory(tmp_path)
    table.register("r", "/object", 2, 6)
    [region] = table.status("r")
    assert (region.name, region.key, region.offset, region.byte_size) == ("r", "/object", 2, 6)
    assert table.span("r", 1, 5).read() == b"34567"
    assert table.span("r", 0, 0).read() == b""
    assert table.span("r", 2, 4).write([b"ab", b"c"], "out") == 3
    assert (tmp_path / "object").read_bytes() == b"0123abc789"


@pytest.mark.parametrize(
    ("offset", "byte_size"),
    [(0, 0), (0, 11), (10, 1), (11, 0), (1, 10), (32, (1 << 64) - 32), ((1 << 64) - 1, 1), ((1 << 64) - 1, (1 << 64) - 1)],
)
def test_bytes_beyond_the_object_are_not_registered(tmp_path: Path, offset: int, byte_size: int):
    shm_object(tmp_path, b"0123456789")
    table = memory(tmp_path)
    with pytest.raises(InvalidRequest, match="failed to register shared memory region 'r': invalid args"):
        table.register("r", "object", offset, byte_size)
    assert table.status("") == []
    assert open_descriptors(tmp_path) == 0


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "///",
        "//object",
        "/a/b",
        "../object",
        "..",
        "/.",
        "/.hidden",
        "a\0b",
        "x" * 256,
        "/triton_python_backend_shm_region_1",
        "stoker_worker",
    ],
)
def test_keys_outside_the_clients_objects_are_refused(tmp_path: Path, key: str):
    (tmp_path / "inside").mkdir()
    shm_object(tmp_path, b"secret")
    table = memory(tmp_path / "inside")
    with pytest.raises(InvalidRequest, match=r"cannot register|failed to register") as refused:
        table.register("r", key, 0, 1)
    assert str(tmp_path) not in refused.value.message


def test_only_files_of_the_folder_are_opened(tmp_path: Path):
    shm_object(tmp_path, b"secret", "outside")
    folder = tmp_path / "shm"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    for name in ("link", "folder", "pipe", "absent", "\ud800"):
        with pytest.raises(InvalidRequest, match="Unable to open shared memory region") as refused:
            memory(folder).register("r", name, 0, 1)
        assert str(tmp_path) not in refused.value.message
    assert open_descriptors(tmp_path) == 0


def test_name_is_registered_once_and_may_be_reused_after_removal(tmp_path: Path):
    shm_object(tmp_path, b"0123456789")
    table = memory(tmp_path)
    table.register("r", "object", 0, 4)
    with pytest.raises(AlreadyExists, match="shared memory region 'r' already in manager"):
        table.register("r", "object", 0, 4)
    table.register("again", "object", 2, 8)
    table.unregister("r")
    table.unregister("r")
    table.register("r", "object", 1, 4)
    assert [region.name for region in table.status("")] == ["again", "r"]
    table.unregister("")
    assert table.status("") == []
    with pytest.raises(NotFound, match="Unable to find system shared memory region: 'r'"):
        table.status("r")


def test_number_of_regions_and_length_of_names_are_bounded(tmp_path: Path):
    shm_object(tmp_path, b"0123456789")
    table = memory(tmp_path, limits=Limits(shared_memory_regions=2))
    table.register("a", "object", 0, 1)
    table.register("b", "object", 0, 1)
    with pytest.raises(TooLarge, match="2 shared memory regions are registered"):
        table.register("c", "object", 0, 1)
    with pytest.raises(InvalidRequest, match="'region name' is necessary"):
        table.register("", "object", 0, 1)
    with pytest.raises(InvalidRequest, match="more than the 256 allowed"):
        table.register("n" * 257, "object", 0, 1)


def test_disabled_shared_memory_registers_nothing_and_has_an_empty_status(tmp_path: Path):
    shm_object(tmp_path, b"0123456789")
    table = memory(tmp_path, is_allowed=False)
    with pytest.raises(Unsupported, match=r"Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable"):
        table.register("r", "object", 0, 1)
    with pytest.raises(Unsupported, match="disabled"):
        table.span("r", 0, 1)
    table.unregister("r")
    assert table.status("") == []


@given(offset=st.integers(-2, 1 << 65), size=st.integers(-2, 1 << 65))
def test_span_outside_its_region_is_refused(tmp_path_factory: pytest.TempPathFactory, offset: int, size: int):
    folder = tmp_path_factory.getbasetemp()
    shm_object(folder, bytes(range(16)))
    table = memory(folder)
    table.register("r", "object", 4, 8)
    fits = 0 <= offset < 8 and 0 <= size <= 8 - offset
    if fits:
        assert table.span("r", offset, size).read() == bytes(range(4 + offset, 4 + offset + size))
    else:
        with pytest.raises(InvalidRequest, match="Invalid offset"):
            table.span("r", offset, size)


def test_region_in_use_outlives_its_registration_and_its_object(tmp_path: Path):
    path = shm_object(tmp_path, b"0123456789")
    table = memory(tmp_path)
    table.register("r", "object", 0, 10)
    span = table.span("r", 0, 10)
    table.unregister("r")
    path.unlink()
    assert span.read() == b"0123456789"
    assert open_descriptors(tmp_path) == 1
    del span
    assert open_descriptors(tmp_path) == 0


def test_object_that_shrinks_in_use_is_an_error_and_stays_small(tmp_path: Path):
    path = shm_object(tmp_path, b"0123456789")
    table = memory(tmp_path)
    table.register("r", "object", 0, 10)
    span = table.span("r", 0, 10)
    os.truncate(path, 4)
    with pytest.raises(InvalidRequest, match="shared memory region 'r' is shorter than when it was registered"):
        span.read()
    with pytest.raises(InvalidRequest, match="shorter than when it was registered"):
        span.write([b"0123456789"], "out")
    assert path.stat().st_size == 4


def test_output_larger_than_its_region_is_named_with_both_sizes(tmp_path: Path):
    shm_object(tmp_path, b"0123456789")
    table = memory(tmp_path)
    table.register("r", "object", 0, 10)
    text = r"shared memory size specified with the request for output 'out' \(4 bytes\) should be at least 5 bytes to hold the results"
    with pytest.raises(InvalidRequest, match=text):
        table.span("r", 0, 4).write([b"012", b"45"], "out")


def sample(datatype: DataType) -> Any:
    if datatype is DataType.BYTES:
        return object_array([b"", b"a", b"\0\xff", b"four"], (2, 2))
    if datatype is DataType.BOOL:
        return np.array([[True, False], [False, True]])
    return np.array([[0, 1], [2, 3]]).astype(datatype.numpy)


def put(tensor: Any, region: str, byte_size: int, offset: int = 0) -> None:
    tensor.parameters["shared_memory_region"].string_param = region
    tensor.parameters["shared_memory_byte_size"].int64_param = byte_size
    if offset:
        tensor.parameters["shared_memory_offset"].int64_param = offset


@pytest.mark.parametrize("datatype", list(DataType))
def test_every_datatype_round_trips_through_shared_memory_over_grpc(tmp_path: Path, datatype: DataType):
    array = sample(datatype)
    data = array_to_bytes(array, datatype)
    path = shm_object(tmp_path, data + bytes(len(data) + 7))
    extensions = Extensions(LIMITS, KServeSettings(allow_client_shm=True))
    extensions.shared_memory = memory(tmp_path)
    extensions.shared_memory.register("r", "object", 0, 2 * len(data) + 7)
    engine = FakeEngine(echo(datatype, (2,), name="echo"))
    request = pb.ModelInferRequest(model_name="echo")
    put(request.inputs.add(name="INPUT", datatype=datatype.value, shape=[2, 2]), "r", len(data))
    put(request.outputs.add(name="OUTPUT"), "r", len(data) + 7, len(data))

    answer = asyncio.run(respond(Inference(engine, LIMITS, extensions), request.SerializeToString()))

    message = pb.ModelInferResponse.FromString(answer)
    [output] = message.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("OUTPUT", datatype.value, [2, 2])
    assert output.parameters["shared_memory_region"].string_param == "r"
    assert output.parameters["shared_memory_offset"].int64_param == len(data)
    assert output.parameters["shared_memory_byte_size"].int64_param == len(data)
    assert list(message.raw_output_contents) == [b""]
    assert path.read_bytes() == data + data + bytes(7)
    assert engine.reserved_bytes == 0
    assert engine.peak_bytes >= len(data)


@pytest.mark.parametrize("datatype", list(DataType))
def test_every_datatype_round_trips_through_shared_memory_over_http(tmp_path: Path, datatype: DataType):
    array = sample(datatype)
    data = array_to_bytes(array, datatype)
    path = shm_object(tmp_path, data + bytes(len(data)))
    table = memory(tmp_path)
    table.register("r", "object", 0, 2 * len(data))
    engine = FakeEngine(echo(datatype, (2,), name="echo"))
    shared = {"shared_memory_region": "r", "shared_memory_byte_size": len(data)}
    head = {
        "inputs": [{"name": "INPUT", "datatype": datatype.value, "shape": [2, 2], "parameters": shared}],
        "outputs": [{"name": "OUTPUT", "parameters": {**shared, "shared_memory_offset": len(data)}}],
    }
    body = orjson.dumps(head)
    _, check = SignatureChecks(engine, LIMITS).find("echo", None)
    decoded = http_codec.decode(check, http_codec.Target("echo", None, 0), head, body, None, LIMITS, spans_of_head(head, table, LIMITS))
    response = asyncio.run(engine.infer(decoded.request))
    encoded = http_codec.encode(response, decoded, {})
    assert encoded.header_length is None
    # No parameters: perf_analyzer fails on any that hold no binary_data_size.
    assert orjson.loads(encoded.body)["outputs"] == [{"name": "OUTPUT", "datatype": datatype.value, "shape": [2, 2]}]
    assert path.read_bytes() == data + data


def test_tensors_in_and_outside_shared_memory_mix_in_one_request(tmp_path: Path):
    a, b = np.arange(16, dtype=np.int32), np.full(16, 3, np.int32)
    shm_object(tmp_path, a.tobytes())
    extensions = Extensions(LIMITS, KServeSettings(allow_client_shm=True))
    extensions.shared_memory = memory(tmp_path)
    extensions.shared_memory.register("r", "object", 0, 64)
    request = pb.ModelInferRequest(model_name="simple", raw_input_contents=[b.tobytes()])
    put(request.inputs.add(name="INPUT0", datatype="INT32", shape=[1, 16]), "r", 64)
    request.inputs.add(name="INPUT1", datatype="INT32", shape=[1, 16])
    put(request.outputs.add(name="OUTPUT1"), "r", 64)
    request.outputs.add(name="OUTPUT0")
    data = asyncio.run(respond(Inference(FakeEngine(simple()), LIMITS, extensions), request.SerializeToString()))
    answer = pb.ModelInferResponse.FromString(data)
    assert [output.name for output in answer.outputs] == ["OUTPUT1", "OUTPUT0"]
    assert list(answer.raw_output_contents) == [b"", (a + b).tobytes()]
    assert (tmp_path / "object").read_bytes() == (a - b).tobytes()


def refused(tmp_path: Path, request: pb.ModelInferRequest) -> ServingError:
    shm_object(tmp_path, bytes(64))
    extensions = Extensions(LIMITS, KServeSettings(allow_client_shm=True))
    extensions.shared_memory = memory(tmp_path)
    extensions.shared_memory.register("r", "object", 0, 64)
    engine = FakeEngine(echo(DataType.INT32, (4,), name="echo"))
    with pytest.raises(ServingError) as error:
        asyncio.run(respond(Inference(engine, LIMITS, extensions), request.SerializeToString()))
    assert engine.rejected == ["echo"]
    return error.value


def one_input(*, region: str = "r", byte_size: int = 16, offset: int = 0) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="echo")
    put(request.inputs.add(name="INPUT", datatype="INT32", shape=[1, 4]), region, byte_size, offset)
    return request


def test_contradictions_are_refused_with_their_reason(tmp_path: Path):
    assert (
        "input byte size mismatch for input 'INPUT' for model 'echo'. Expected 16, got 20"
        in refused(tmp_path, one_input(byte_size=20)).message
    )
    assert refused(tmp_path, one_input(region="absent")).message == "Unable to find shared memory region: 'absent'"
    assert refused(tmp_path, one_input(offset=64)).message == "Invalid offset for shared memory region: 'r'"
    assert refused(tmp_path, one_input(offset=56)).message == "Invalid offset + byte size for shared memory region: 'r'"
    assert "must be an unsigned integer" in refused(tmp_path, one_input(byte_size=-1)).message
    with_contents = one_input()
    with_contents.inputs[0].contents.int_contents.extend([1, 2, 3, 4])
    assert "unexpected 'content' provided when using shared memory for input tensor 'INPUT'" in refused(tmp_path, with_contents).message
    without_size = one_input()
    del without_size.inputs[0].parameters["shared_memory_byte_size"]
    assert "'shared_memory_byte_size' must be specified" in refused(tmp_path, without_size).message
    without_region = one_input()
    del without_region.inputs[0].parameters["shared_memory_region"]
    assert "can not be specified without 'shared_memory_region'" in refused(tmp_path, without_region).message
    raw_too = one_input()
    raw_too.raw_input_contents.append(bytes(16))
    assert "expected 0 raw_input_contents" in refused(tmp_path, raw_too).message
    classified = one_input()
    put(classified.outputs.add(name="OUTPUT"), "r", 16)
    classified.outputs[0].parameters["classification"].int64_param = 1
    assert "cannot be placed in shared memory" in refused(tmp_path, classified).message


def test_output_larger_than_its_region_is_counted_for_its_model(tmp_path: Path):
    shm_object(tmp_path, bytes(64))
    extensions = Extensions(LIMITS, KServeSettings(allow_client_shm=True))
    extensions.shared_memory = memory(tmp_path)
    extensions.shared_memory.register("r", "object", 0, 64)
    request = one_input()
    put(request.outputs.add(name="OUTPUT"), "r", 8)
    engine = FakeEngine(echo(DataType.INT32, (4,), name="echo"))
    with pytest.raises(InvalidRequest, match="at least 16 bytes to hold the results"):
        asyncio.run(respond(Inference(engine, LIMITS, extensions), request.SerializeToString()))
    assert engine.failed_models == ["echo"]


def test_large_regions_are_read_and_written_off_the_loop_and_within_the_budget(tmp_path: Path):
    array = np.arange(300_000, dtype=np.int32)
    path = shm_object(tmp_path, array.tobytes() + bytes(array.nbytes))
    extensions = Extensions(LIMITS, KServeSettings(allow_client_shm=True))
    extensions.shared_memory = memory(tmp_path)
    extensions.shared_memory.register("r", "object", 0, 2 * array.nbytes)
    request = pb.ModelInferRequest(model_name="echo")
    put(request.inputs.add(name="INPUT", datatype="INT32", shape=[1, array.size]), "r", array.nbytes)
    put(request.outputs.add(name="OUTPUT"), "r", array.nbytes, array.nbytes)
    engine = FakeEngine(echo(DataType.INT32, (-1,), name="echo"))
    asyncio.run(respond(Inference(engine, LIMITS, extensions), request.SerializeToString()))
    assert path.read_bytes() == array.tobytes() * 2
    poor = FakeEngine(echo(DataType.INT32, (-1,), name="echo"), budget_bytes=array.nbytes)
    with pytest.raises(ServingError, match="no room for"):
        asyncio.run(respond(Inference(poor, LIMITS, extensions), request.SerializeToString()))


def shared_request(tmp_path: Path, elements: int) -> tuple[bytes, Extensions]:
    """A serialised request whose input and output are in shared memory, and the extensions with its regions."""
    size = 4 * elements
    path = shm_object(tmp_path, b"")
    # A sparse file: nothing of it exists until it is written.
    os.truncate(path, 2 * size)
    extensions = Extensions(LIMITS, KServeSettings(allow_client_shm=True))
    extensions.shared_memory = memory(tmp_path)
    extensions.shared_memory.register("r", "object", 0, 2 * size)
    request = pb.ModelInferRequest(model_name="echo")
    put(request.inputs.add(name="INPUT", datatype="INT32", shape=[1, elements]), "r", size)
    put(request.outputs.add(name="OUTPUT"), "r", size, size)
    return request.SerializeToString(), extensions


def infer_within(budget: ByteBudget, data: bytes, extensions: Extensions) -> FakeEngine:
    engine = FakeEngine(echo(DataType.INT32, (-1,), name="echo"), budget=budget)
    asyncio.run(respond(Inference(engine, LIMITS, extensions), data))
    return engine


def test_inputs_larger_than_the_budget_pass_alone(tmp_path: Path):
    data, extensions = shared_request(tmp_path, 500_000)
    budget = ByteBudget(1 << 20, lambda: 0)
    # Beside small requests; beside a large one they do not.
    assert budget.reserve(1000)
    infer_within(budget, data, extensions)
    assert budget.held_bytes == 1000
    assert budget.reserve(2000)
    with pytest.raises(Overloaded, match="no room for 2000000 more"):
        infer_within(budget, data, extensions)
    assert budget.held_bytes == 3000


def test_inputs_that_can_never_fit_are_refused_permanently(tmp_path: Path):
    data, extensions = shared_request(tmp_path, 500_000)
    budget = ByteBudget(1 << 30, lambda: 0, most_request_bytes=1 << 20)
    with pytest.raises(TooLarge, match="more than the 1048576 that one request may take") as refused:
        infer_within(budget, data, extensions)
    assert refused.value.retry_after_s is None
    assert budget.held_bytes == 0


def test_codec_refuses_shared_memory_if_it_is_disabled():
    request = one_input()
    with pytest.raises(Unsupported, match="Client shared memory is disabled"):
        GrpcCodec(FakeEngine(echo(DataType.INT32, (4,), name="echo")), LIMITS).decode(request, 10, None)


def test_regions_and_their_settings_are_the_same_for_every_service(tmp_path: Path):
    shm_object(tmp_path, bytes(64))
    extensions = Extensions(LIMITS, KServeSettings(allow_client_shm=True))
    extensions.shared_memory = memory(tmp_path)
    one, other = (KServeService(FakeEngine(), LIMITS, extensions) for _ in range(2))

    async def scenario() -> tuple[Any, Any]:
        call: Any = None
        await one.system_shared_memory_register(pb.SystemSharedMemoryRegisterRequest(name="r", key="/object", offset=8, byte_size=16), call)
        return await other.system_shared_memory_status(pb.SystemSharedMemoryStatusRequest(), call), await other.server_metadata(
            pb.ServerMetadataRequest(), call
        )

    status, metadata = asyncio.run(scenario())
    region = status.regions["r"]
    assert (region.name, region.key, region.offset, region.byte_size) == ("r", "/object", 8, 16)
    assert "system_shared_memory" in metadata.extensions
