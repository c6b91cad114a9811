"""Cards other than the i20: compiled for by option, marked as unfitted, and rejected by a card of another type."""

from dataclasses import fields

import numpy as np
import onnx
import pytest

from stoker.backends.api.errors import BackendSettingError
from stoker.backends.gcu.compile.target import build
from stoker.backends.gcu.dump import executable_text, report_executable
from stoker.backends.gcu.hardware import CARDS, I10, I20, GcuHardware
from stoker.backends.gcu.runtime import GcuSystem, StatusError
from stoker.backends.gcu.serving.options import CardSettings
from stoker.backends.gcu.timing import copy_time_s
from stoker.compiler.cli import main as compile_command
from stoker.compiler.errors import OptionError
from stoker.compiler.options import CompilerOptions
from stoker.compiler.target import SourceModel, find_target
from tests.fakes.graphs import parse

MODEL = parse("g (float[n,64] x) => (float[n,64] y) { y = MatMul(x, w) }", {"w": np.ones((64, 64), np.float32)})


@pytest.mark.parametrize("card", [each for each in CARDS.values() if not each.is_fitted], ids=lambda each: each.name)
def test_every_figure_of_another_card_has_a_source(card: GcuHardware) -> None:
    figures = {field.name for field in fields(card)} - {"name", "max_dims", "max_streams", "is_fitted", "sources"}
    assert card.sources.keys() == figures
    assert all(card.sources.values())


def test_executable_is_made_for_the_card_and_marked_unfitted() -> None:
    executable = build(MODEL, batch_sizes=[4], card="I10")
    assert (executable.card, executable.attributes["times"]) == ("i10", "unfitted for this card")
    assert len(executable.batches[0].run_s) == I10.clusters
    fitted = build(MODEL, batch_sizes=[4])
    assert fitted.card == "i20"
    assert "times" not in fitted.attributes


def test_unknown_card_is_named() -> None:
    with pytest.raises(OptionError, match=r"card: there is no 'S60'.*expected i20, i10, T20"):
        build(MODEL, batch_sizes=[4], card="S60")
    with pytest.raises(BackendSettingError, match=r"card.*there is no 'S60'; expected i20, i10, T20"):
        CardSettings.read({"card": "S60"})


def test_number_of_clusters_is_that_of_the_card() -> None:
    assert CardSettings.read({"card": "i10"}).clusters == I10.clusters
    with pytest.raises(BackendSettingError, match="clusters"):
        CardSettings.read({"card": "i10", "clusters": "6"})
    with pytest.raises(OptionError, match="from 1 to 4"):
        build(MODEL, batch_sizes=[4], card="i10", resource_mode="6c")


def test_card_of_another_type_rejects_the_executable() -> None:
    system = GcuSystem(cards=1, hardware=I20)
    try:
        with system.acquire(0) as device, pytest.raises(StatusError, match="was compiled for i10; card 0 is of type i20"):
            device.load(build(MODEL, batch_sizes=[4], card="i10"))
    finally:
        system.close()


def test_command_says_that_times_are_unfitted_and_sizing_omits_the_card(tmp_path, capsys) -> None:
    onnx.save(MODEL, tmp_path / "m.onnx")
    words = ["--target", "gcu", "-i", str(tmp_path / "m.onnx"), "--batch_sizes", "4", "--card", "T20", "--export_popef", "--run"]
    assert compile_command([*words, "--output_dir", str(tmp_path)]) == 0
    assert "simulated GCU, T20 (times unfitted), 4 cluster(s)" in capsys.readouterr().out
    assert [each.name for each in find_target("gcu").sized_devices()] == ["i20"]
    assert any("unfitted for this card" in line for line in executable_text(report_executable(tmp_path / "model.exec")))


@pytest.mark.parametrize(("card", "is_fitted"), [("i20", True), ("i10", False), ("T20", False)])
def test_estimate_of_an_unfitted_card_has_no_error_bar(card: str, is_fitted: bool) -> None:
    model = parse("g (float[4,4096] x) => (float[4,4096] y) { y = Relu(x) }")
    found = find_target("gcu").sized_model(SourceModel(model=model, name="m"), CompilerOptions(card=card)).estimate()
    assert (found.time_factors is not None) == is_fitted
    assert (found.error.rows > 0) == is_fitted


def test_copies_overlap_the_run_of_another_batch() -> None:
    model = parse("g (float[4,65536] x) => (float[4,65536] y) { y = Relu(x) }")
    found = find_target("gcu").sized_model(SourceModel(model=model, name="m"), CompilerOptions()).estimate()
    copy_s = copy_time_s(I20, 4 * 65536 * 4)
    assert found.period_s == pytest.approx(max(copy_s, found.latency_s - 2 * copy_s, found.latency_s / 2))
    assert found.period_s > max(copy_s, found.latency_s - 2 * copy_s), "two batches in flight do not keep the slowest lane busy"
