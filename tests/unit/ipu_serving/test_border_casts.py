"""The types of clients' tensors against those of the device."""

from collections.abc import Mapping

import numpy as np
import pytest

from stoker.backends.api.errors import BackendFailed, InvalidRequest
from stoker.backends.api.tensor import DataType
from stoker.backends.ipu.serving.popef_executable import PopefExecutable
from stoker.backends.testing.samples import same_in_and_out, signature
from tests.fakes.ipu_backend import Bench, output_of
from tests.fakes.ipu_programs import doubling
from tests.fakes.ipu_served import echo, halving, picking, popef


def test_fp32_clients_are_served_by_an_fp16_executable(bench: Bench) -> None:
    instance = bench.load(popef(halving((4, 2))), same_in_and_out(DataType.FP32, max_batch_size=4))
    found = output_of(instance, np.array([[1, 2], [3, 0.1]], np.float32))
    assert found.dtype == np.float32
    assert found.tolist() == [[0.5, 1], [1.5, float(np.float16(0.1)) / 2]]


def test_fp16_clients_need_no_cast(bench: Bench) -> None:
    instance = bench.load(popef(halving((4, 2))), same_in_and_out(DataType.FP16, max_batch_size=4))
    assert output_of(instance, np.full((4, 2), 3, np.float16)).tolist() == [[1.5, 1.5]] * 4


def test_fp64_clients_are_served_by_an_fp32_executable(bench: Bench) -> None:
    instance = bench.load(popef(doubling((2, 2))), same_in_and_out(DataType.FP64, max_batch_size=2))
    assert output_of(instance, np.array([[1.5, 2]])).tolist() == [[3, 4]]


def test_value_beyond_fp16_is_infinite_as_on_the_device(bench: Bench) -> None:
    instance = bench.load(popef(halving((1, 2))), same_in_and_out(DataType.FP32, max_batch_size=1))
    assert output_of(instance, np.array([[1e6, -1e6]], np.float32)).tolist() == [[np.inf, -np.inf]]


def test_int64_clients_are_served_by_an_int32_executable(bench: Bench) -> None:
    instance = bench.load(popef(picking((4, 2))), same_in_and_out(DataType.INT64, max_batch_size=4))
    found = output_of(instance, np.array([[1, 12], [3, 4]]))
    assert found.dtype == np.int64
    assert found.tolist() == [[1, 12], [3, 4]]


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_int64_beyond_the_device_is_refused_by_name_and_value(bench: Bench, value: int) -> None:
    instance = bench.load(popef(picking((1, 2))), same_in_and_out(DataType.INT64, max_batch_size=1))
    with pytest.raises(InvalidRequest, match=f"input 'x' holds {value}, which is outside -2147483648 to 2147483647"):
        output_of(instance, np.array([[1, value]]))


def test_output_beyond_the_served_type_fails(bench: Bench) -> None:
    served = signature({"x": (DataType.INT64, (2,))}, {"y": (DataType.INT32, (2,))}, 1)
    instance = bench.load(popef(echo((1, 2), DataType.INT64)), served)
    assert output_of(instance, np.array([[1, -2]])).tolist() == [[1, -2]]
    with pytest.raises(BackendFailed, match=f"output 'y' holds {2**40}"):
        output_of(instance, np.array([[1, 2**40]]))


@pytest.mark.parametrize("datatype", [DataType.INT32, DataType.INT8, DataType.BF16, DataType.BOOL])
def test_other_casts_are_violations(bench: Bench, datatype: DataType) -> None:
    found = bench.violations(popef(doubling((1, 2))), same_in_and_out(datatype, max_batch_size=1))
    assert [each.field for each in found] == ["input[0].data_type", "output[0].data_type"]


def test_complete_call_reaches_the_device_without_a_copy(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones((4, 2), np.float32)
    instance = bench.load(popef(doubling((4, 2))), same_in_and_out(DataType.FP32, max_batch_size=4))
    seen: list[np.ndarray] = []
    run = PopefExecutable.run

    def watched(self: PopefExecutable, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        seen.append(inputs["x"])
        return run(self, inputs)

    monkeypatch.setattr(PopefExecutable, "run", watched)
    output_of(instance, x)
    assert seen[0] is x
