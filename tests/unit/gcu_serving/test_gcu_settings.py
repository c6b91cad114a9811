"""The operator's settings and config.pbtxt parameters of the `topsinference` backend: read, and refused all at once."""

from collections.abc import Callable

import numpy as np
import pytest

from stoker.backends.api.errors import BackendSettingError
from stoker.backends.api.tensor import DataType
from stoker.backends.gcu.backend import TopsInferenceBackend
from stoker.backends.gcu.serving.options import PARAMETER_KEYS, CardSettings, ModelParameters, parameter_violations, read_parameters
from stoker.backends.simulated.numerics import Numerics
from stoker.backends.simulated.pacing import Pacing
from stoker.backends.testing.samples import same_in_and_out
from tests.fakes.gcu_backend import CardBench, output_of
from tests.fakes.gcu_served import doubling

SERVED = same_in_and_out(DataType.FP32, max_batch_size=4)
ONES = np.ones((1, 2), np.float32)


def test_settings_are_read() -> None:
    given = {"cards": "3", "clusters": "4", "pacing": "Realtime", "numerics": "off", "faults": "reset@3, hang@10", "host_threads": "2"}
    read = CardSettings.read(given)
    assert (read.cards, read.clusters, read.host_threads) == (3, 4, 2)
    assert (read.pacing, read.numerics) == (Pacing.REALTIME, Numerics.OFF)
    system = read.system()
    assert len(system.cards) == 3
    assert [len(card.faults.faults) for card in system.cards] == [2, 0, 0]


def test_defaults_are_one_card_without_pacing() -> None:
    read = CardSettings.read({})
    assert (read.cards, read.clusters, read.pacing, read.numerics) == (1, 6, Pacing.NONE, Numerics.REAL)
    assert read.host_threads >= 1


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("cards", "0", "a whole number from 1 to 64"),
        ("cards", "many", "a whole number"),
        ("cards", "²", "a whole number"),
        ("clusters", "7", "a whole number from 1 to 6"),
        ("pacing", "fast", "none, realtime, virtual"),
        ("numerics", "half", "real, off"),
        ("faults", "boom", "no fault"),
        ("faults", "reset:link@1", "no variants"),
        ("host_threads", "-1", "a whole number"),
    ],
)
def test_wrong_setting_is_named_with_its_allowed_values(name: str, value: str, expected: str) -> None:
    with pytest.raises(BackendSettingError) as caught:
        TopsInferenceBackend().configure({name: value})
    assert f"{name}='{value}'" in str(caught.value)
    assert expected in str(caught.value)


def test_all_wrong_settings_are_named_at_once_and_nothing_is_changed() -> None:
    backend = TopsInferenceBackend()
    with pytest.raises(BackendSettingError) as caught:
        backend.configure({"cards": "2", "clocks": "1", "pacing": "x", "numerics": "y"})
    assert all(
        part in str(caught.value) for part in ("there is no setting 'clocks'; there are runtime, cards,", "pacing='x'", "numerics='y'")
    )
    assert backend.device_ids() == (0,)


def test_every_bad_parameter_is_named_at_once() -> None:
    bad = {"clusters": "7", "pipeline_depth": "0", "timeout_ms": "soon"}
    assert bad.keys() == PARAMETER_KEYS
    found = list(parameter_violations(bad, CardSettings()))
    assert [(each.field, f"'{bad[key]}'" in each.message) for key, each in zip(bad, found, strict=True)] == [
        (f'parameters["{key}"]', True) for key in bad
    ]


def test_no_instance_runs_on_clusters_reserved_by_the_operator(bench_with: Callable[..., CardBench]) -> None:
    bench = bench_with(clusters="4")
    assert [each.field for each in bench.violations(doubling(), SERVED, clusters="5")] == ['parameters["clusters"]']
    bench.load(doubling(), SERVED)
    assert [bench.figure("stoker_gcu_cluster_instances", cluster=str(number)) for number in range(6)] == [1, 1, 1, 1, 0, 0]


def test_parameters_are_read() -> None:
    assert read_parameters({}) == ModelParameters(clusters=None, pipeline_depth=2, timeout_s=600)
    given = {"clusters": "3", "pipeline_depth": "5", "timeout_ms": "0"}
    assert read_parameters(given) == ModelParameters(clusters=3, pipeline_depth=5, timeout_s=None)


def test_outputs_are_zeros_with_numerics_off_and_a_notice_reports_it(bench_with: Callable[..., CardBench]) -> None:
    bench = bench_with(numerics="off")
    assert output_of(bench.load(doubling(), SERVED), ONES).tolist() == [[0, 0]]
    assert "numerics are off for 'model': all outputs are zeros" in list(bench.backend.notices())


def test_copies_take_their_time_with_numerics_off(bench_with: Callable[..., CardBench]) -> None:
    served = same_in_and_out(DataType.FP32, max_batch_size=1 << 16)
    x = np.ones((1 << 16, 2), np.float32)
    figures = []
    for numerics in ("real", "off"):
        bench = bench_with(numerics=numerics)
        found = output_of(bench.load(doubling(batches=(1 << 16,)), served), x)
        assert found.shape == x.shape
        assert (found == (2 if numerics == "real" else 0)).all()
        figures.append({(each.name, *each.labels.values()): each.value for each in bench.backend.figures() if "cop" in each.name})
    assert figures[0] == figures[1]
    assert sum(value for (name, *_), value in figures[1].items() if name == "stoker_gcu_copy_bytes_total") == 2 * x.nbytes


def test_fault_corrupts_outputs_with_numerics_off(bench_with: Callable[..., CardBench]) -> None:
    instance = bench_with(numerics="off", faults="bad@1").load(doubling(), SERVED)
    assert np.isnan(output_of(instance, ONES)).all()
    assert output_of(instance, ONES).tolist() == [[0, 0]]


def test_virtual_time_advances_by_the_cards_work(bench_with: Callable[..., CardBench]) -> None:
    bench = bench_with(pacing="virtual")
    instance = bench.load(doubling(), SERVED)
    assert output_of(instance, ONES).tolist() == [[2, 2]]
    assert bench.figure("stoker_gcu_cluster_busy_seconds_total", cluster="0") == pytest.approx(1e-3 / 6, rel=1e-4)
    # How much of the run is waited for is up to the threads: one that comes late finds it over. The copies behind it are always waited for.
    assert bench.figure("stoker_gcu_stream_wait_seconds_total") > 0
