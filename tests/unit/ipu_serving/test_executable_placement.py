"""The assignment of executables to simulated IPUs, and its cost."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.tensor import DataType
from stoker.backends.testing.samples import same_in_and_out, signature
from tests.fakes.ipu_backend import Bench, output_of
from tests.fakes.ipu_programs import adding, compute, doubling
from tests.fakes.ipu_served import popef

TWO_ROWS = same_in_and_out(DataType.FP32, max_batch_size=2)
SUMS = signature(dict.fromkeys("ab", (DataType.FP32, (3,))), {"total": (DataType.FP32, (3,))}, 4)
ONES = np.ones((1, 2), np.float32)
THREES = np.full((1, 3), 3, np.float32)


def test_each_executable_has_its_own_ipu_while_some_are_free(bench: Bench) -> None:
    for name in ("one", "two"):
        bench.load(popef(doubling((2, 2), steps=[compute(len(name))]), name=name), TWO_ROWS, name=name)
    assert bench.figure("stoker_ipu_executables", device="0") == 1
    assert bench.figure("stoker_ipu_executables", device="1") == 1
    [notice] = bench.backend.notices()
    assert notice.startswith("'one', 'two' on simulated IPUs, of which there are 4 (runtime: simulated, Stoker ")


def test_models_of_one_fused_executable_share_it(bench: Bench) -> None:
    file = popef(doubling((2, 2)), adding((4, 3)))
    first = bench.load(file, TWO_ROWS, name="doubles", sub_graph="0")
    second = bench.load(file, SUMS, name="sums", sub_graph="1")
    for _ in range(3):
        assert output_of(first, ONES).tolist() == [[2, 2]]
        assert second.execute({"a": THREES, "b": THREES}, ["total"])["total"].tolist() == [[6, 6, 6]]
    assert bench.figure("stoker_ipu_executables") == 1
    assert bench.figure("stoker_ipu_loads_total") == 1
    first.close()
    assert second.execute({"a": THREES, "b": THREES}, ["total"])["total"].tolist() == [[6, 6, 6]]
    second.close()
    bench.instances.clear()
    assert bench.figure("stoker_ipu_executables") == 0
    assert bench.figure("stoker_ipu_calls_total") == 7


def test_two_executables_on_one_ipu_evict_each_other_and_a_notice_reports_it(bench_with: Callable[..., Bench]) -> None:
    bench = bench_with(sim_num_IPUs="1")
    first = bench.load(popef(doubling((2, 2)), name="one"), TWO_ROWS, name="one")
    second = bench.load(popef(doubling((2, 2)), name="two"), TWO_ROWS, name="two")
    before = bench.figure("stoker_ipu_evictions_total")
    for _ in range(3):
        assert output_of(first, ONES).tolist() == [[2, 2]]
        assert output_of(second, ONES).tolist() == [[2, 2]]
    assert bench.figure("stoker_ipu_evictions_total") == before + 6
    assert bench.figure("stoker_ipu_load_seconds_total") > 6 * 0.25
    notice = list(bench.backend.notices())[1]
    assert notice.startswith("simulated IPU 0 is shared by 2 executables ('one'; 'two'), of which it holds one")


def test_instances_of_one_version_are_copies_on_separate_ipus(bench: Bench) -> None:
    file = popef(doubling((2, 2)))
    for _ in range(2):
        assert output_of(bench.load(file, TWO_ROWS), ONES).tolist() == [[2, 2]]
    assert bench.figure("stoker_ipu_calls_total", device="0") == 1
    assert bench.figure("stoker_ipu_calls_total", device="1") == 1


def test_more_instances_than_ipus_share_copies_without_eviction(bench_with: Callable[..., Bench]) -> None:
    bench = bench_with(sim_num_IPUs="2")
    file = popef(doubling((2, 2)))
    instances = [bench.load(file, TWO_ROWS) for _ in range(5)]
    for instance in instances:
        assert output_of(instance, ONES).tolist() == [[2, 2]]
    assert bench.figure("stoker_ipu_executables") == 2
    assert bench.figure("stoker_ipu_evictions_total") == 0
    bench.close()
    assert bench.figure("stoker_ipu_executables") == 0


def test_another_version_of_the_same_file_shares_the_executable(bench: Bench) -> None:
    file = popef(doubling((2, 2)))
    bench.load(file, TWO_ROWS, version=1)
    bench.load(file, TWO_ROWS, version=2)
    assert bench.figure("stoker_ipu_executables") == 1


def test_different_run_settings_prevent_sharing(bench: Bench) -> None:
    file = popef(doubling((2, 2)))
    bench.load(file, TWO_ROWS, name="one")
    bench.load(file, TWO_ROWS, name="two", numerics="off")
    assert bench.figure("stoker_ipu_executables") == 2


def test_unloaded_model_releases_its_ipu_and_keeps_its_metrics(bench_with: Callable[..., Bench]) -> None:
    bench = bench_with(sim_num_IPUs="1")
    for loads in range(1, 4):
        instance = bench.load(popef(doubling((2, 2)), name=f"m{loads}"), TWO_ROWS)
        output_of(instance, ONES)
        bench.close()
        assert bench.figure("stoker_ipu_loads_total") == loads
        assert bench.figure("stoker_ipu_evictions_total") == 0
    assert list(bench.backend.notices()) == []


def test_model_may_name_its_ipus(bench: Bench) -> None:
    output_of(bench.load(popef(doubling((2, 2))), TWO_ROWS, device_ids="3"), ONES)
    assert bench.figure("stoker_ipu_calls_total", device="3") == 1
    with pytest.raises(ModelLoadError, match=r"wanted 1 IPU\(s\) .*among ids \[9\]; the system has 4 usable"):
        bench.load(popef(doubling((2, 2))), TWO_ROWS, name="other", device_ids="9")


def test_too_few_ipus_is_a_load_error_with_their_number(bench: Bench) -> None:
    kept = bench.load(popef(doubling((2, 2))), TWO_ROWS)
    with pytest.raises(ModelLoadError, match=r"wanted 8 IPU\(s\).*4 usable.*sim_num_IPUs=N"):
        bench.load(popef(doubling((2, 2)), num_ipus=8), TWO_ROWS, name="large")
    assert output_of(kept, ONES).tolist() == [[2, 2]]


def test_ipus_taken_by_models_of_another_size_are_a_load_error(bench: Bench) -> None:
    bench.load(popef(doubling((2, 2)), num_ipus=4), TWO_ROWS)
    with pytest.raises(ModelLoadError, match="none in use fits to be shared"):
        bench.load(popef(doubling((2, 2))), TWO_ROWS, name="small")


def test_failed_load_leaves_its_ipu_free(bench_with: Callable[..., Bench]) -> None:
    bench = bench_with(sim_num_IPUs="1")
    with pytest.raises(ModelLoadError):
        bench.load(popef(doubling((2, 2)), num_ipus=2), TWO_ROWS)
    assert output_of(bench.load(popef(doubling((2, 2))), TWO_ROWS), ONES).tolist() == [[2, 2]]
    assert bench.figure("stoker_ipu_executables") == 1


def test_every_metric_is_labelled_simulated_and_explained(bench: Bench) -> None:
    output_of(bench.load(popef(doubling((2, 2))), TWO_ROWS), ONES)
    figures = list(bench.backend.figures())
    assert all(figure.labels["simulated"] == "true" for figure in figures)
    assert all(figure.name.startswith("stoker_ipu_") for figure in figures)
    assert all(figure.name.endswith("_total") == (figure.kind == "counter") for figure in figures)
    assert all(figure.labels["device"] == "0" for figure in figures if figure.name != "stoker_ipu_devices")
    page = (Path(__file__).resolve().parents[3] / "docs" / "monitoring.md").read_text()
    assert set(re.findall(r"`(stoker_ipu_\w+)`", page)) == {figure.name for figure in figures}
