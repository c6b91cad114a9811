"""PredictService over gRPC, in process, with a fake engine."""

import grpc
import numpy as np
import pytest

from stoker.backends.api.errors import Overloaded, QueueTimeout
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.limits import Limits
from stoker.server.core.request import InferRequest
from stoker.server.pb.adlik import predict_pb2
from tests.fakes.adlik_calls import Caller, array_of, predict_request, run, run_direct
from tests.fakes.fake_engine import FakeEngine, echo, model, signature, simple

Code = grpc.StatusCode
A = np.arange(32, dtype=np.int32).reshape(2, 16)
B = np.ones((2, 16), np.int32)
PAIR = {"INPUT0": A, "INPUT1": B}


def test_request_without_a_filter_gets_every_output():
    async def scenario(caller: Caller) -> None:
        response = await caller.call("predict", predict_request(PAIR, 2))
        assert set(response.outputs) == {"OUTPUT0", "OUTPUT1"}
        np.testing.assert_array_equal(array_of(response.outputs["OUTPUT0"], np.int32), A + B)
        np.testing.assert_array_equal(array_of(response.outputs["OUTPUT1"], np.int32), A - B)
        assert response.outputs["OUTPUT0"].tensor.dtype == 3

    run(scenario, FakeEngine(simple()), http=False)


def test_filter_limits_the_outputs():
    engine = FakeEngine(simple())

    async def scenario(caller: Caller) -> None:
        request = predict_request(PAIR, 2)
        request.output_filter["OUTPUT1"].SetInParent()
        assert set((await caller.call("predict", request)).outputs) == {"OUTPUT1"}
        assert engine.requests[0].output_names == ("OUTPUT1",)

    run_direct(scenario, engine)


@pytest.mark.parametrize(
    ("ask", "echoed"),
    [({}, 0), ({"version": 3}, 3), ({"version_label": "stable"}, 0), ({"version_label": "latest"}, 0), ({"version_label": "any"}, 0)],
)
def test_requested_version_is_echoed_and_labels_select_the_lowest_or_highest(ask, echoed):
    found = simple()
    found.versions = (2, 3, 5)
    engine = FakeEngine(found)

    async def scenario(caller: Caller) -> None:
        request = predict_request(PAIR, 2)
        if "version" in ask:
            request.model_spec.version.value = ask["version"]
        else:
            request.model_spec.version_label = ask.get("version_label", "")
        response = await caller.call("predict", request)
        assert (response.model_spec.name, response.model_spec.version.value) == ("simple", echoed)
        assert engine.requests[0].model_version == {"stable": 2}.get(ask.get("version_label"), ask.get("version"))

    run_direct(scenario, engine)


def test_missing_element_type_and_shape_default_to_the_models():
    async def scenario(caller: Caller) -> None:
        request = predict_request(PAIR, 2)
        for tensor in request.inputs.values():
            tensor.ClearField("dtype")
            tensor.ClearField("tensor_shape")
        response = await caller.call("predict", request)
        np.testing.assert_array_equal(array_of(response.outputs["OUTPUT0"], np.int32), A + B)

    run_direct(scenario, FakeEngine(simple()))


def test_raw_bytes_override_typed_values_and_one_typed_value_fills_the_tensor():
    async def scenario(caller: Caller) -> None:
        request = predict_request(PAIR, 2)
        request.inputs["INPUT0"].int_val.extend([7, 8, 9])
        request.inputs["INPUT1"].ClearField("tensor_content")
        request.inputs["INPUT1"].int_val.append(5)
        response = await caller.call("predict", request)
        np.testing.assert_array_equal(array_of(response.outputs["OUTPUT0"], np.int32), A + 5)

    run_direct(scenario, FakeEngine(simple()))


@pytest.mark.parametrize("size", [16, 40_000])
def test_large_request_gets_the_same_response_as_a_small_one(size):
    """Beyond a few KiB contents are split off on the wire; beyond a few 100 KiB work runs in threads."""
    values = np.random.default_rng(0).standard_normal((4, size)).astype(np.float32)

    async def scenario(caller: Caller) -> None:
        response = await caller.call("predict", predict_request({"INPUT": values}, 4, "echo_fp32"))
        np.testing.assert_array_equal(array_of(response.outputs["OUTPUT"], np.float32), values)

    run(scenario, FakeEngine(echo(DataType.FP32)), http=False)


@pytest.mark.parametrize(
    ("datatype", "field", "values", "expected"),
    [
        (DataType.FP32, "float_val", [1.5, -2.0], np.array([1.5, -2.0], np.float32)),
        (DataType.FP64, "double_val", [1.5, 2.0], np.array([1.5, 2.0])),
        (DataType.FP16, "half_val", [0x3C00, 0xC000], np.array([1, -2], np.float16)),
        (DataType.BF16, "half_val", [0x3F80, 0xFFFF], np.array([0x3F80, 0xFFFF], np.uint16)),
        (DataType.INT8, "int_val", [-128, 127], np.array([-128, 127], np.int8)),
        (DataType.UINT8, "int_val", [0, 255], np.array([0, 255], np.uint8)),
        (DataType.INT16, "int_val", [-5, 5], np.array([-5, 5], np.int16)),
        (DataType.UINT16, "int_val", [0, 65535], np.array([0, 65535], np.uint16)),
        (DataType.INT32, "int_val", [-5, 5], np.array([-5, 5], np.int32)),
        (DataType.INT64, "int64_val", [-(1 << 60), 5], np.array([-(1 << 60), 5])),
        (DataType.UINT32, "uint32_val", [1, (1 << 32) - 1], np.array([1, (1 << 32) - 1], np.uint32)),
        (DataType.UINT64, "uint64_val", [1, (1 << 64) - 1], np.array([1, (1 << 64) - 1], np.uint64)),
        (DataType.BOOL, "bool_val", [True, False], np.array([True, False])),
        (DataType.BYTES, "string_val", [b"a", b""], np.array([b"a", b""], object)),
    ],
)
def test_typed_values_of_every_element_type_are_accepted(datatype, field, values, expected):
    engine = FakeEngine(echo(datatype, (2,), name="m"))

    async def scenario(caller: Caller) -> None:
        request = predict_pb2.PredictRequest(batch_size=1)
        request.model_spec.name = "m"
        getattr(request.inputs["INPUT"], field).extend(values)
        response = await caller.call("predict", request)
        found = engine.requests[0].inputs["INPUT"]
        assert found.dtype == datatype.numpy
        np.testing.assert_array_equal(found[0], expected)
        tensor = response.outputs["OUTPUT"].tensor
        assert (list(tensor.string_val) == values) if datatype is DataType.BYTES else (tensor.tensor_content == expected.tobytes())

    run_direct(scenario, engine)


def refused(
    request: predict_pb2.PredictRequest,
    code: grpc.StatusCode,
    *texts: str,
    engine: FakeEngine | None = None,
    limits: Limits | None = None,
):
    async def scenario(caller: Caller) -> None:
        found, text = await caller.rejection("predict", request)
        assert found is code, text
        for each in texts:
            assert each in text

    run_direct(scenario, engine or FakeEngine(simple()), limits)


def changed(change, batch_size=2, name="simple"):
    request = predict_request(PAIR, batch_size, name)
    change(request)
    return request


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        (lambda r: setattr(r.inputs["INPUT0"], "dtype", 1), ("INPUT0", "DT_FLOAT", "DT_INT32")),
        (lambda r: setattr(r.inputs["INPUT0"], "dtype", 77), ("INPUT0", "77", "DT_INT32")),
        (lambda r: r.inputs.pop("INPUT1"), ("INPUT1", "missing")),
        (lambda r: r.inputs["other"].SetInParent(), ("expected 2 inputs but got 3",)),
        (lambda r: (r.inputs.pop("INPUT0"), r.inputs["wrong"].CopyFrom(r.inputs["INPUT1"])), ("wrong", "'INPUT0', 'INPUT1'")),
        (lambda r: setattr(r.inputs["INPUT0"], "tensor_content", bytes(127)), ("INPUT0", "127 bytes", "takes 128")),
        (lambda r: setattr(r.inputs["INPUT0"], "tensor_content", b""), ("INPUT0", "no values", "int_val")),
        (lambda r: setattr(r.inputs["INPUT0"].tensor_shape.dim[0], "size", 1), ("INPUT0", "[1,16]", "batch_size is 2")),
        (lambda r: setattr(r.inputs["INPUT0"].tensor_shape.dim[1], "size", 8), ("INPUT0", "[-1,16]", "[2,8]")),
        (lambda r: setattr(r.inputs["INPUT0"].tensor_shape.dim[1], "size", -1), ("INPUT0",)),
        (lambda r: r.inputs["INPUT0"].tensor_shape.dim.add(size=1), ("INPUT0", "[2,16,1]")),
        (lambda r: setattr(r, "batch_size", 0), ("batch_size must be at least 1",)),
        (lambda r: setattr(r, "batch_size", 9), ("batch_size 9", "max_batch_size 8")),
        (lambda r: setattr(r, "batch_size", (1 << 32) - 1), ("batch_size 4294967295",)),
        (lambda r: r.output_filter["none"].SetInParent(), ("Output none does not exist",)),
        (lambda r: setattr(r.model_spec, "name", ""), ("model_spec.name is missing",)),
        (lambda r: setattr(r.model_spec, "name", "../etc"), ("invalid model name",)),
        (lambda r: setattr(r.model_spec, "name", "ghost"), ("ghost", "not found")),
        (lambda r: setattr(r.model_spec.version, "value", 9), ("version 9",)),
        (lambda r: setattr(r.model_spec.version, "value", -1), ("-1",)),
        (lambda r: r.model_spec.version.SetInParent(), ("version 0",)),
    ],
)
def test_contradictions_with_the_model_are_refused_with_their_field(change, texts):
    refused(changed(change), Code.INVALID_ARGUMENT, *texts)


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ({"float_val": [1.0]}, ("neither tensor_content nor int_val", "it has float_val")),
        ({"int_val": [1, 2]}, ("2 values in int_val", "takes 32")),
        ({"int_val": list(range(33))}, ("33 values",)),
    ],
)
def test_typed_values_of_the_wrong_type_are_refused(values, texts):
    def change(request):
        request.inputs["INPUT0"].ClearField("tensor_content")
        for field, given in values.items():
            getattr(request.inputs["INPUT0"], field).extend(given)

    refused(changed(change), Code.INVALID_ARGUMENT, "INPUT0", *texts)


@pytest.mark.parametrize(
    ("datatype", "field", "value"),
    [
        (DataType.INT8, "int_val", 128),
        (DataType.UINT8, "int_val", -1),
        (DataType.UINT16, "int_val", 65536),
        (DataType.FP16, "half_val", -1),
    ],
)
def test_typed_values_out_of_range_are_refused(datatype, field, value):
    request = predict_pb2.PredictRequest(batch_size=1)
    request.model_spec.name = "m"
    getattr(request.inputs["INPUT"], field).append(value)
    refused(request, Code.INVALID_ARGUMENT, "INPUT", field, engine=FakeEngine(echo(datatype, (2,), name="m")))


def test_one_open_dimension_is_inferred_from_the_content_and_two_are_refused():
    values = np.arange(12, dtype=np.float32)

    async def scenario(caller: Caller) -> None:
        for name, dims in (("one", (-1, 3)), ("two", (-1, -1))):
            request = predict_request({"INPUT": values.reshape(2, 2, 3)}, 2, name)
            request.inputs["INPUT"].ClearField("tensor_shape")
            if name == "one":
                response = await caller.call("predict", request)
                assert [dim.size for dim in response.outputs["OUTPUT"].tensor.tensor_shape.dim] == [2, 2, 3]
            else:
                code, text = await caller.rejection("predict", request)
                assert code is Code.INVALID_ARGUMENT
                assert "tensor_shape" in text
                assert dims == (-1, -1)

    run_direct(scenario, FakeEngine(echo(DataType.FP32, (-1, 3), name="one"), echo(DataType.FP32, (-1, -1), name="two")))


@pytest.mark.parametrize("count", [200, 1 << 40])
def test_string_that_fills_a_tensor_counts_once_for_each_element(count: int):
    request = predict_pb2.PredictRequest(batch_size=1)
    request.model_spec.name = "echo_bytes"
    tensor = request.inputs["INPUT"]
    tensor.string_val.append(b"x" * 100_000)
    for size in (1, count):
        tensor.tensor_shape.dim.add(size=size)
    refused(request, Code.RESOURCE_EXHAUSTED, "input 'INPUT'", "--limit expansion_bytes", engine=FakeEngine(echo(DataType.BYTES)))


def test_value_that_fills_more_than_the_request_limit_is_refused():
    request = predict_pb2.PredictRequest(batch_size=1)
    request.model_spec.name = "echo_fp32"
    tensor = request.inputs["INPUT"]
    tensor.float_val.append(1.0)
    for size in (1, 1 << 50):
        tensor.tensor_shape.dim.add(size=size)
    refused(request, Code.RESOURCE_EXHAUSTED, "INPUT", engine=FakeEngine(echo(DataType.FP32)))


def test_filled_tensor_is_reserved_before_it_is_allocated():
    request = predict_pb2.PredictRequest(batch_size=1)
    request.model_spec.name = "echo_fp32"
    tensor = request.inputs["INPUT"]
    tensor.float_val.append(1.0)
    for size in (1, 1 << 20):
        tensor.tensor_shape.dim.add(size=size)
    refused(request, Code.UNAVAILABLE, "no room", engine=FakeEngine(echo(DataType.FP32), budget_bytes=1 << 20))


def test_model_without_batching_accepts_tensors_without_a_batch_dimension():
    async def scenario(caller: Caller) -> None:
        request = predict_request({"INPUT": np.arange(6, dtype=np.int32).reshape(2, 3)}, 1, "plain")
        request.output_filter["OUTPUT"].cls.count = 2
        response = await caller.call("predict", request)
        assert [dim.size for dim in response.outputs["OUTPUT"].tensor.tensor_shape.dim] == [2, 3]
        assert [[best.idx for best in sample.cls] for sample in response.outputs["OUTPUT"].batch_classes] == [[5, 4]]
        request.batch_size = 2
        refused_text = "batch_size 2 is not 1, and there is no batching of model 'plain'"
        assert await caller.rejection("predict", request) == (Code.INVALID_ARGUMENT, refused_text)

    run_direct(scenario, FakeEngine(echo(DataType.INT32, (2, 3), 0, name="plain")))


def scores(values: list[list[float]]) -> FakeEngine:
    array = np.array(values, np.float32)
    spec = [TensorSpec("y", DataType.FP32, (array.shape[1],))]
    found = model("scored", signature([TensorSpec("x", DataType.FP32, (1,))], spec), lambda _: {"y": array})
    found.labels["y"] = ["zero", "one"]
    return FakeEngine(found)


def test_top_k_returns_the_highest_values_of_each_sample_with_labels():
    engine = scores([[0.5, 2.0, 2.0], [3.0, float("nan"), -1.0]])

    async def scenario(caller: Caller) -> None:
        request = predict_request({"x": np.zeros((2, 1), np.float32)}, 2, "scored")
        request.output_filter["y"].cls.count = 9
        output = (await caller.call("predict", request)).outputs["y"]
        assert len(output.tensor.tensor_content) == 24
        named = [[(best.idx, best.label) for best in sample.cls] for sample in output.batch_classes]
        assert named == [[(1, "one"), (2, ""), (0, "zero")], [(0, "zero"), (2, ""), (1, "one")]]
        assert output.batch_classes[0].cls[2].score == 0.5
        request.output_filter["y"].cls.count = 1
        output = (await caller.call("predict", request)).outputs["y"]
        assert [len(sample.cls) for sample in output.batch_classes] == [1, 1]

    run_direct(scenario, engine)


def test_more_classes_than_the_response_limit_are_refused():
    request = predict_request({"x": np.zeros((2, 1), np.float32)}, 2, "scored")
    request.output_filter["y"].cls.count = 3
    refused(request, Code.RESOURCE_EXHAUSTED, "cls.count 3", engine=scores([[1, 2, 3], [1, 2, 3]]), limits=Limits(class_count=5))


def test_output_without_an_order_has_no_top_k():
    request = predict_pb2.PredictRequest(batch_size=1)
    request.model_spec.name = "m"
    request.inputs["INPUT"].string_val.append(b"a")
    request.output_filter["OUTPUT"].cls.count = 1
    refused(request, Code.INVALID_ARGUMENT, "OUTPUT", "DT_STRING", engine=FakeEngine(echo(DataType.BYTES, (1,), name="m")))


@pytest.mark.parametrize(
    ("error", "code"),
    [(Overloaded("full"), Code.UNAVAILABLE), (QueueTimeout("late"), Code.RESOURCE_EXHAUSTED)],
)
def test_engine_failures_have_adliks_codes(error, code):
    async def fail(_request: InferRequest) -> None:
        raise error

    found = simple()
    found.before = fail
    refused(predict_request(PAIR, 2), code, error.message, engine=FakeEngine(found))


def test_bytes_that_are_not_a_message_are_refused():
    class Garbage:
        def SerializeToString(self):
            return b"\x12\xff\xff\xff\xff\x0f" + bytes(5000)

    async def scenario(caller: Caller) -> None:
        code, text = await caller.rejection("predict", Garbage())
        assert code is Code.INVALID_ARGUMENT
        assert "valid" in text

    run(scenario, FakeEngine(simple()), http=False)


def test_refused_request_is_counted():
    engine = FakeEngine(simple())
    refused(changed(lambda r: setattr(r, "batch_size", 0)), Code.INVALID_ARGUMENT, engine=engine)
    assert engine.rejected == ["simple"]
    assert engine.requests == []
