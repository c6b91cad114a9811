"""config.pbtxt parameters and the operator's settings: read, and refused all at once."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.api.errors import BackendSettingError, ModelLoadError
from stoker.backends.api.tensor import DataType
from stoker.backends.ipu.backend import PoplarBackend
from stoker.backends.ipu.serving.options import PARAMETER_KEYS, DevicePoolSettings, parameter_violations, read_parameters
from stoker.backends.simulated.numerics import Numerics
from stoker.backends.simulated.pacing import Pacing
from stoker.backends.testing.samples import same_in_and_out
from tests.fakes.ipu_backend import Bench, output_of
from tests.fakes.ipu_programs import doubling
from tests.fakes.ipu_served import popef

TWO_ROWS = same_in_and_out(DataType.FP32, max_batch_size=2)
ONES = np.ones((1, 2), np.float32)


def test_every_bad_parameter_is_named_at_once() -> None:
    bad = {
        "synchronous_execution": "maybe",
        "pipeline_depth": "0",
        "timeout_ns": "-1",
        "pacing": "fast",
        "numerics": "half",
        "check_package_hash": "2",
        "auto_reset": "x",
        "device_ids": "0,a",
    }
    found = list(parameter_violations(bad, DevicePoolSettings()))
    assert {each.field for each in found} == {f'parameters["{key}"]' for key in bad}
    assert all(value in each.message for value, each in zip(bad.values(), found, strict=False) if each.field.endswith(f'{value}"]'))


def test_parameters_are_read() -> None:
    given = {"timeout_ns": "500000", "pacing": "realtime", "numerics": "off", "device_ids": "2, 3", "auto_reset": "0", "sub_graph": "1"}
    read = read_parameters(given, DevicePoolSettings())
    assert (read.sub_graph, read.pipeline_depth, read.check_package_hash) == ("1", 3, True)
    assert (read.run.timeout_ns, read.run.pacing, read.run.numerics) == (500_000, Pacing.REALTIME, Numerics.OFF)
    assert (read.run.auto_reset, read.run.device_ids) == (False, frozenset({2, 3}))


@pytest.mark.parametrize(("given", "depth"), [({}, 3), ({"pipeline_depth": "5"}, 5), ({"synchronous_execution": "1"}, 1)])
def test_synchronous_execution_is_one_batch_at_a_time(bench: Bench, given: dict[str, str], depth: int) -> None:
    assert bench.load(popef(doubling((2, 2))), TWO_ROWS, **given).pipeline_depth == depth


def test_depth_beside_synchronous_execution_is_a_contradiction() -> None:
    found = list(parameter_violations({"synchronous_execution": "1", "pipeline_depth": "4"}, DevicePoolSettings()))
    assert [each.field for each in found] == ['parameters["pipeline_depth"]']


def test_backend_lists_its_parameters() -> None:
    assert PoplarBackend().parameter_keys == PARAMETER_KEYS


def test_numerics_can_be_disabled_for_a_model_with_a_notice(bench: Bench) -> None:
    instance = bench.load(popef(doubling((2, 2))), TWO_ROWS, numerics="off")
    assert output_of(instance, ONES).tolist() == [[0, 0]]
    assert "numerics are off for 'model': all outputs are zeros" in list(bench.backend.notices())


def test_numerics_of_the_operator_are_the_default_of_models(bench_with: Callable[..., Bench]) -> None:
    bench = bench_with(numerics="off")
    assert output_of(bench.load(popef(doubling((2, 2))), TWO_ROWS), ONES).tolist() == [[0, 0]]
    assert output_of(bench.load(popef(doubling((2, 2))), TWO_ROWS, name="other", numerics="real"), ONES).tolist() == [[2, 2]]


def test_virtual_time_applies_to_all_models_or_none(bench_with: Callable[..., Bench]) -> None:
    file = popef(doubling((2, 2)))
    assert [each.field for each in bench_with().violations(file, TWO_ROWS, pacing="virtual")] == ['parameters["pacing"]']
    virtual = bench_with(pacing="virtual")
    assert [each.field for each in virtual.violations(file, TWO_ROWS, pacing="realtime")] == ['parameters["pacing"]']
    assert output_of(virtual.load(file, TWO_ROWS), ONES).tolist() == [[2, 2]]


def test_every_bad_setting_is_named_at_once_and_nothing_is_changed(tmp_path: Path) -> None:
    bad = {
        "sim_num_IPUs": "0",
        "sim_ipu_version": "ipu7",
        "sim_tiles_per_IPU": "many",
        "faults": "boom",
        "pacing": "slow",
        "numerics": "x",
        "check_package_hash": "perhaps",
        "custom_op_libraries": str(tmp_path / "absent.so"),
        "sim_num_ipus": "4",
    }
    backend = PoplarBackend()
    with pytest.raises(BackendSettingError) as caught:
        backend.configure(bad)
    for name, value in bad.items():
        assert name in str(caught.value)
        assert value in str(caught.value) or name == "sim_num_ipus"
    assert "there is no setting 'sim_num_ipus'; there are runtime, use_sim_if_no_hw, sim_num_IPUs, " in str(caught.value)


@pytest.mark.parametrize("version", ["2", "ipu2", "21"])
def test_system_has_the_configured_version(bench_with: Callable[..., Bench], version: str) -> None:
    bench = bench_with(sim_ipu_version=version, sim_tiles_per_IPU="1472")
    file = popef(doubling((2, 2)), ipu_version=2)
    if version == "21":
        with pytest.raises(ModelLoadError, match=r"wanted 1 IPU.* of version ipu2 .*the system has 4 usable IPU.* of ipu21"):
            bench.load(file, TWO_ROWS)
    else:
        assert output_of(bench.load(file, TWO_ROWS), ONES).tolist() == [[2, 2]]


def test_setting_is_named_by_its_own_name_not_by_its_variable() -> None:
    with pytest.raises(BackendSettingError) as caught:
        DevicePoolSettings.read({"sim_num_IPUs": "many"})
    assert str(caught.value) == "backend 'poplar': sim_num_IPUs='many': is no number"
