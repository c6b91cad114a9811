"""Clients match fragments of Triton's texts: each error here is looked at through the gRPC codec, which adds nothing to them."""

import struct
from collections.abc import Callable

import numpy as np
import pytest

from stoker.backends.api.errors import InvalidRequest, ServingError, Unsupported
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.validation import SignatureCheck, SignatureMismatch
from stoker.server.core.limits import Limits
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.protocols.kserve.grpc_codec import GrpcCodec
from tests.fakes.fake_engine import FakeEngine, FakeModel, echo, model, signature, simple

Edit = Callable[[pb.ModelInferRequest], object]


def request() -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="simple")
    for name in ("INPUT0", "INPUT1"):
        message.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        message.raw_input_contents.append(bytes(64))
    return message


def decode(message: pb.ModelInferRequest, *models: FakeModel, limits: Limits | None = None):
    return GrpcCodec(FakeEngine(simple(), *models), limits or Limits()).decode(message, 0, None)


def refusal(message: pb.ModelInferRequest, *models: FakeModel, limits: Limits | None = None) -> ServingError:
    with pytest.raises(ServingError) as caught:
        decode(message, *models, limits=limits)
    return caught.value


def shape_of_first(*shape: int) -> Edit:
    def edit(message: pb.ModelInferRequest) -> None:
        message.inputs[0].shape[:] = shape

    return edit


def drop_second(message: pb.ModelInferRequest) -> None:
    del message.inputs[1]
    del message.raw_input_contents[1]


def add_third(message: pb.ModelInferRequest) -> None:
    message.inputs.add(name="INPUT2", datatype="INT32", shape=[1, 16])
    message.raw_input_contents.append(bytes(64))


def two_rows_in_second(message: pb.ModelInferRequest) -> None:
    message.inputs[1].shape[:] = [2, 16]
    message.raw_input_contents[1] = bytes(128)


def same_output_twice(message: pb.ModelInferRequest) -> None:
    message.outputs.add(name="OUTPUT0")
    message.outputs.add(name="OUTPUT0")


def set_field(path: str, value: object) -> Edit:
    def edit(message: pb.ModelInferRequest) -> None:
        target = message.inputs[0] if path.startswith("inputs.") else message
        setattr(target, path.removeprefix("inputs."), value)

    return edit


CORE = [
    (
        drop_second,
        "expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['INPUT0'], but missing required input(s) ['INPUT1']",
    ),
    (add_third, "expected 2 inputs but got 3 inputs for model 'simple'"),
    (set_field("inputs.name", "WRONG"), "unexpected inference input 'WRONG' for model 'simple'"),
    (set_field("inputs.name", "INPUT1"), "input 'INPUT1' already exists in request"),
    (set_field("inputs.datatype", "FP32"), "inference input 'INPUT0' data-type is 'FP32', but model 'simple' expects 'INT32'"),
    (shape_of_first(1, 8), "unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,16], got [1,8]."),
    (shape_of_first(16), "Expected [-1,16], got [16]. The model is batched (max_batch_size 8)"),
    (shape_of_first(), "input 'INPUT0' has no shape but model requires batch dimension for 'simple'"),
    (
        shape_of_first(9, 16),
        "inference request batch-size must be <= 8 for 'simple'; send the 9 rows in several requests, or write into the model's "
        "config.pbtxt the parameter split_oversized_requests, or max_batch_size: 9 if its file takes such batches",
    ),
    (shape_of_first(0, 16), "the number of rows, must be at least 1"),
    (shape_of_first(-1, 16), "dimensions must not be negative"),
    (shape_of_first(4, 1152921504606846978), "unexpected shape for input 'INPUT0'"),
    (shape_of_first(*[1] * 33), "has 33 dimensions, more than the 32 allowed"),
    (two_rows_in_second, "input 'INPUT1' batch size does not match other inputs for 'simple'"),
    (lambda m: m.raw_input_contents.append(b""), "expected 2 raw_input_contents, one for each input of model 'simple', got 3"),
    (lambda m: m.outputs.add(name="NOPE"), "unexpected inference output 'NOPE' for model 'simple'"),
    (same_output_twice, "output 'OUTPUT0' already exists in request"),
]


@pytest.mark.parametrize(("edit", "text"), CORE, ids=[text[:40] for _, text in CORE])
def test_mismatch_with_the_signature_has_tritons_error_text(edit: Edit, text: str):
    message = request()
    edit(message)
    error = refusal(message)
    assert isinstance(error, InvalidRequest)
    assert error.message.startswith("[request id: <id_unknown>] ")
    assert text in error.message


@pytest.mark.parametrize("size", [63, 65, 0, 128])
def test_raw_contents_one_byte_longer_or_shorter_are_refused(size: int):
    message = request()
    message.raw_input_contents[0] = bytes(size)
    assert f"input byte size mismatch for input 'INPUT0' for model 'simple'. Expected 64, got {size}" in refusal(message).message


def test_clients_request_id_is_the_prefix():
    message = request()
    message.id = "abc"
    message.inputs[0].datatype = "FP32"
    assert refusal(message).message.startswith("[request id: abc] ")


@pytest.mark.parametrize("shape", [(2**62, 2**62), (1, 2**63 - 1), (2**31, 2**31)])
def test_shapes_that_overflow_machine_words_are_counted_exactly(shape: tuple[int, ...]):
    message = pb.ModelInferRequest(model_name="plain")
    message.inputs.add(name="INPUT", datatype="FP32", shape=shape)
    message.raw_input_contents.append(bytes(16))
    assert f"Expected {shape[0] * shape[1] * 4}, got 16" in refusal(message, echo(DataType.FP32, (-1, -1), 0, "plain")).message


PARAMETERS = [
    ("sequence_id", {"int64_param": -7}, "must be a string or an unsigned 64-bit integer"),
    ("sequence_id", {"bool_param": True}, "must be a string or an unsigned 64-bit integer"),
    ("sequence_id", {"string_param": "x" * 129}, "has 129 characters, more than the 128 allowed"),
    ("sequence_start", {"int64_param": 1}, "must be a boolean"),
    ("sequence_end", {"string_param": "true"}, "must be a boolean"),
    ("binary_data_output", {"bool_param": True}, "reserved for Triton usage"),
    ("triton_secret", {"int64_param": 7}, "reserved for Triton usage"),
    ("headers", {"string_param": "x"}, "reserved for Triton usage"),
    ("version_label", {"string_param": "stable"}, "selects no version in KServe v2: name the version's number"),
    ("priority", {"string_param": "high"}, "must be an unsigned 64-bit integer"),
    ("timeout", {"int64_param": -1}, "must be an unsigned 64-bit integer"),
    ("timeout", {"double_param": 1.5}, "must be an unsigned 64-bit integer"),
    ("timeout", {"bool_param": True}, "must be an unsigned 64-bit integer"),
    ("triton_enable_empty_final_response", {"int64_param": 1}, "must be a boolean"),
    ("mine", {}, "has no value"),
]


@pytest.mark.parametrize(("key", "value", "text"), PARAMETERS, ids=[f"{k}-{v}" for k, v, _ in PARAMETERS])
def test_bad_request_parameters_are_named(key: str, value: dict[str, object], text: str):
    message = request()
    message.parameters[key].CopyFrom(pb.InferParameter(**value))  # type: ignore[arg-type]
    error = refusal(message)
    assert text in error.message
    assert key in error.message
    assert not error.message.startswith("[request id")


def test_valid_request_parameters_reach_the_engine():
    message = request()
    message.parameters["priority"].uint64_param = 2
    message.parameters["timeout"].string_param = "1500"
    message.parameters["sequence_id"].int64_param = 0
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    message.parameters["mine"].double_param = 0.5
    decoded = decode(message)
    assert (decoded.request.priority, decoded.request.timeout_us, decoded.form.wants_empty_final) == (2, 1500, True)
    assert decoded.request.parameters == {"mine": 0.5}


@pytest.mark.parametrize("where", ["inputs", "outputs"])
def test_shared_memory_tensors_are_refused_as_disabled(where: str):
    message = request()
    message.outputs.add(name="OUTPUT0")
    getattr(message, where)[0].parameters["shared_memory_region"].string_param = "r"
    error = refusal(message)
    assert isinstance(error, Unsupported)
    assert "Client shared memory is disabled" in error.message


@pytest.mark.parametrize("value", [{"int64_param": 0}, {"string_param": "3"}, {"bool_param": True}])
def test_classification_count_must_be_a_positive_integer(value: dict[str, object]):
    message = request()
    message.outputs.add(name="OUTPUT0").parameters["classification"].CopyFrom(pb.InferParameter(**value))  # type: ignore[arg-type]
    assert "must be an integer of at least 1" in refusal(message).message


@pytest.mark.parametrize("version", ["x", "-1", "1.0", " 1", "١", "9" * 19])
def test_version_must_be_decimal_digits(version: str):
    message = request()
    message.model_version = version
    assert "must be decimal digits" in refusal(message).message


def test_counts_and_lengths_are_bounded():
    limits = Limits(parameter_count=2, id_length=4, name_length=8, output_count=1)
    message = request()
    message.id = "12345"
    assert "request id has 5 characters, more than the 4 allowed" in refusal(message, limits=limits).message
    message = request()
    for key in "abc":
        message.parameters[key].bool_param = True
    assert "has 3 parameters, more than the 2 allowed" in refusal(message, limits=limits).message
    message = request()
    message.model_name = "m" * 9
    assert "model name has 9 characters, more than the 8 allowed" in refusal(message, limits=limits).message
    message = request()
    same_output_twice(message)
    assert "asks for 2 outputs, more than the 1 allowed" in refusal(message, limits=limits).message
    assert "has 2 inputs, more than the 1 allowed" in refusal(request(), limits=Limits(tensor_count=1)).message


STRINGS = [
    (b"", 2, "expected 2 string elements for inference input 'INPUT'"),
    (
        struct.pack("<I", 1) + b"a" + b"\x01\x00\x00",
        2,
        "incomplete string length indicator for inference input 'INPUT', expecting 4 bytes but only 3",
    ),
    (
        struct.pack("<I", 2**32 - 1) + bytes(8),
        2,
        "incomplete string data for inference input 'INPUT', expecting string of length 4294967295 but only 8",
    ),
    (struct.pack("<I", 4) + b"abcd", 2, "expected 2 string elements for inference input 'INPUT' for model 'echo_bytes', got 1"),
    (struct.pack("<III", 0, 0, 0), 2, "expected 2 string elements for inference input 'INPUT'"),
]


@pytest.mark.parametrize(("raw", "count", "text"), STRINGS, ids=range(len(STRINGS)))
def test_length_prefixes_are_checked_against_the_received_bytes(raw: bytes, count: int, text: str):
    message = pb.ModelInferRequest(model_name="echo_bytes")
    message.inputs.add(name="INPUT", datatype="BYTES", shape=[1, count])
    message.raw_input_contents.append(raw)
    assert text in refusal(message, echo(DataType.BYTES)).message


def test_declared_count_beyond_the_data_allocates_nothing():
    message = pb.ModelInferRequest(model_name="echo_bytes")
    message.inputs.add(name="INPUT", datatype="BYTES", shape=[8, 2**60])
    message.raw_input_contents.append(b"1234")
    assert "too few for as many length prefixes" in refusal(message, echo(DataType.BYTES)).message


def test_optional_input_may_be_omitted():
    specs = [TensorSpec("A", DataType.FP32, (2,)), TensorSpec("B", DataType.FP32, (2,), optional=True)]
    fake = model("m", signature(specs, specs[:1]), lambda inputs: {"A": inputs["A"]})
    message = pb.ModelInferRequest(model_name="m")
    message.inputs.add(name="A", datatype="FP32", shape=[1, 2])
    message.raw_input_contents.append(np.ones(2, np.float32).tobytes())
    assert set(decode(message, fake).request.inputs) == {"A"}
    message.inputs[0].name = "B"
    assert "expected number of inputs between 1 and 2 but got 1 inputs" in refusal(message, fake).message


def test_typed_and_raw_contents_exclude_each_other():
    message = request()
    message.inputs[0].contents.int_contents.append(1)
    assert "contents field must not be specified when using raw_input_contents" in refusal(message).message


def test_typed_values_must_fit_their_narrow_type():
    message = pb.ModelInferRequest(model_name="echo_int8")
    message.inputs.add(name="INPUT", datatype="INT8", shape=[1, 1]).contents.int_contents.append(128)
    assert "outside the range of INT8, -128 to 127" in refusal(message, echo(DataType.INT8)).message


def test_half_floats_are_accepted_as_raw_contents_only():
    message = pb.ModelInferRequest(model_name="echo_fp16")
    message.inputs.add(name="INPUT", datatype="FP16", shape=[1, 1]).contents.fp32_contents.append(1)
    assert "can only be sent as raw_input_contents" in refusal(message, echo(DataType.FP16)).message


def test_replaced_version_is_checked_against_its_own_signature():
    engine = FakeEngine(simple())
    codec = GrpcCodec(engine, Limits())
    codec.decode(request(), 0, None)
    engine.models["simple"] = echo(DataType.FP32, (4,), 8, "simple")
    with pytest.raises(InvalidRequest, match="expected 1 inputs but got 2"):
        codec.decode(request(), 0, None)


@pytest.mark.parametrize(("dims", "shape"), [((-1,), [-1]), ((-1, -1), [-1, -1])])
def test_negative_dimension_is_named_as_such(dims: tuple[int, ...], shape: list[int]):
    check = SignatureCheck("m", echo(DataType.FP32, dims, 0).config.signature, Limits())
    with pytest.raises(SignatureMismatch, match="dimensions must not be negative"):
        check.count_elements(check.inputs["INPUT"], "FP32", shape)
