"""`DeviceInstance` with the host's memory in the place of a device's."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

from stoker.backends.api.errors import BackendFailed, InvalidRequest
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.onnx.device_instance import MOST_SHAPES, DeviceInstance
from tests.fakes.onnx_models import identity, model, pick, sum_and_difference, value


def instance(proto: object, inputs: dict[str, DataType], outputs: dict[str, DataType]) -> DeviceInstance:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])  # type: ignore[attr-defined]
    given, returned = (tuple(TensorSpec(name, datatype, (-1,)) for name, datatype in side.items()) for side in (inputs, outputs))
    return DeviceInstance(session, ModelSignature(given, returned, 64), device=("cpu", 0), static_batch_size=None)


FLOATS = {"a": DataType.FP32, "b": DataType.FP32}
RESULTS = {"sum": DataType.FP32, "difference": DataType.FP32}


def floats(rows: int, seed: int) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    random = np.random.default_rng(seed)
    return {name: random.random((rows, 2), np.float32) for name in FLOATS}


def test_outputs_of_a_batch_are_not_overwritten_by_the_next() -> None:
    tested = instance(sum_and_difference(), FLOATS, RESULTS)
    batches = [floats(3, seed) for seed in range(4)]
    found = [tested.execute(batch, ["sum", "difference"]) for batch in batches]
    for batch, outputs in zip(batches, found, strict=True):
        np.testing.assert_array_equal(outputs["sum"], batch["a"] + batch["b"])
        np.testing.assert_array_equal(outputs["difference"], batch["a"] - batch["b"])


def test_equal_shapes_share_one_set_of_buffers_and_their_number_is_bounded() -> None:
    tested = instance(sum_and_difference(), FLOATS, RESULTS)
    for _ in range(3):
        tested.execute(floats(2, 0), ["sum"])
    assert tested.buffer_count == 1
    for rows in range(1, MOST_SHAPES + 10):
        batch = floats(rows, rows)
        np.testing.assert_array_equal(tested.execute(batch, ["sum"])["sum"], batch["a"] + batch["b"])
    assert tested.buffer_count == MOST_SHAPES


def test_output_that_is_an_input_is_a_copy_of_its_buffer() -> None:
    proto = model([helper.make_node("Neg", ["x"], ["y"])], [value("x", ("n", 2))], [value("y", ("n", 2)), value("x", ("n", 2))])
    tested = instance(proto, {"x": DataType.FP32}, {"y": DataType.FP32, "x": DataType.FP32})
    first = tested.execute({"x": np.ones((1, 2), np.float32)}, ["x", "y"])
    tested.execute({"x": np.zeros((1, 2), np.float32)}, ["x", "y"])
    assert first["x"].tolist() == [[1, 1]]


def test_no_rows_pass() -> None:
    outputs = instance(sum_and_difference(), FLOATS, RESULTS).execute(floats(0, 0), ["sum"])
    assert outputs["sum"].shape == (0, 2)


def test_strings_pass_as_bytes() -> None:
    tested = instance(identity(DataType.BYTES), {"x": DataType.BYTES}, {"y": DataType.BYTES})
    words = np.array([[b"caf\xc3\xa9", b""]], np.object_)
    assert tested.execute({"x": words}, ["y"])["y"].tolist() == words.tolist()
    with pytest.raises(InvalidRequest, match="input 'x' element 0 is not UTF-8"):
        tested.execute({"x": np.array([[b"\xff", b""]], np.object_)}, ["y"])


def test_bfloat16_passes_as_raw_bits() -> None:
    tested = instance(identity(DataType.BF16), {"x": DataType.BF16}, {"y": DataType.BF16})
    bits = np.array([[0x3F80, 0xC000]], np.uint16)
    assert tested.execute({"x": bits}, ["y"])["y"].tolist() == bits.tolist()


def test_failed_run_is_the_requests_error_and_the_next_one_runs() -> None:
    tested = instance(pick(), {"x": DataType.INT64}, {"y": DataType.FP32})
    with pytest.raises(BackendFailed, match="indices element out of data bounds"):
        tested.execute({"x": np.array([[0, 7]])}, ["y"])
    assert tested.execute({"x": np.array([[1, 2]])}, ["y"])["y"].tolist() == [[10, 20]]


def test_closed_instance_fails() -> None:
    tested = instance(sum_and_difference(), FLOATS, RESULTS)
    tested.close()
    with pytest.raises(BackendFailed, match="closed"):
        tested.execute(floats(1, 0), ["sum"])


def test_device_instance_is_kept_off_the_event_loop() -> None:
    assert not instance(sum_and_difference(), FLOATS, RESULTS).only_computes
