"""The sizing of a plan: the same figures as a compilation, remedies for what does not fit, and bounds."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from stoker.cli.plan.conversions import Conversions, collected_warnings
from stoker.cli.plan.sizing import Sizing
from stoker.compiler.convert.converter import Converter
from stoker.compiler.convert.options import ConversionOptions
from stoker.compiler.options import CompilerOptions
from stoker.compiler.target import SourceModel, find_target
from tests.fakes.graphs import parse


def _weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32) * 0.1


CONVOLUTION = parse(
    "g (float[b,3,16,16] x) => (float[b,10] y)"
    " { c = Conv<pads = [1,1,1,1]>(x, k)  r = Relu(c)  p = GlobalAveragePool(r)  f = Flatten(p)  y = MatMul(f, w) }",
    {"k": _weights(8, 3, 3, 3), "w": _weights(8, 10)},
)
HEADS = parse(
    "g (float[b,6,8] x) => (float[b,6,8] y)"
    " { q = MatMul(x, w)  h = Reshape(q, split)  t = Transpose<perm = [0,2,1,3]>(h)  u = Transpose<perm = [0,2,1,3]>(t)"
    "  y = Reshape(u, join) }",
    {"w": _weights(8, 8), "split": np.array([0, 6, 2, 4], np.int64), "join": np.array([0, 6, 8], np.int64)},
)


def _device(target: str, name: str, count: int = 1):
    return next(each for each in find_target(target).sized_devices() if (each.name, each.count) == (name, count))


@pytest.mark.parametrize("model", [CONVOLUTION, HEADS], ids=["convolution", "heads"])
@pytest.mark.parametrize(
    ("name", "device", "precision"),
    [("ipu", "C600", "fp32"), ("ipu", "C600", "fp16"), ("ipu", "M2000", "fp16"), ("gcu", "i20", "fp32"), ("gcu", "i20", "fp16")],
)
def test_figures_are_those_of_a_compilation(name: str, device: str, precision: str, model: onnx.ModelProto, tmp_path: Path) -> None:
    target, sized = find_target(name), _device(name, device)
    found = Sizing(target, Conversions(model, {}, 1), [precision]).combination(sized, [sized], precision, 4)
    assert found.fits
    conversion = ConversionOptions(
        precision=target.conversion_precision(precision), batch_size=4, batch_axis=0, skip_passes=target.skip_passes
    )
    source = SourceModel(model=Converter.of(conversion).convert_internal(model), name="model", inputs=["x"], source=model)
    options = CompilerOptions(**target.sizing_options(sized, precision))  # type: ignore[arg-type]
    summary = target.export([source], options, tmp_path / target.artefact_filename).summary
    memory = found.memory
    assert memory is not None
    assert memory.used_bytes == summary.get("tile_bytes", summary.get("hbm_bytes"))
    if name == "ipu":
        assert found.latency is not None
        assert found.latency.value * 1e3 == pytest.approx(summary["modelled_latency_ms"]["model"])  # type: ignore[index]
    else:
        run_ms = summary["modelled_latency_ms"]["batch 4"]  # type: ignore[index]
        assert found.latency is not None
        assert run_ms < found.latency.value * 1e3 < run_ms + 0.1  # with the copies to and from the card


LARGE = parse("g (float[b,1024,1024] x) => (float[b,1024,1024] y) { y = Relu(x) }")


def test_combination_that_does_not_fit_fits_with_a_smaller_batch() -> None:
    one, two = _device("ipu", "C600"), _device("ipu", "C600", 2)
    sizing = Sizing(find_target("ipu"), Conversions(LARGE, {}, 1), ["fp32", "fp16"])
    found = sizing.combination(one, [one, two], "fp32", 256)
    assert not found.fits
    assert "bytes needed, 638,976 available" in found.problem
    assert found.remedy is not None
    assert found.remedy.change == f"batch {found.remedy.batch}"
    assert sizing.combination(one, [one, two], "fp32", found.remedy.batch).fits
    assert not sizing.combination(one, [one, two], "fp32", 2 * found.remedy.batch).fits


@pytest.mark.slow
def test_combination_that_the_compiler_makes_fit_by_itself_fits_with_its_lever() -> None:
    model = parse(
        "g (float[b,64,72,72] x) => (float[b,64,72,72] y) { c = Conv<pads = [3,3,3,3]>(x, k)  y = Conv<pads = [3,3,3,3]>(c, k) }",
        {"k": _weights(64, 64, 7, 7)},
    )
    card = _device("ipu", "C600")
    with collected_warnings() as warnings:
        found = Sizing(find_target("ipu"), Conversions(model, {}, 1), ["fp32"]).combination(card, [card], "fp32", 128)
    assert (found.fits, found.problem, found.remedy) == (True, "", None)
    assert [each.rpartition(" instead of ")[2] for each in found.memory_levers] == ["0.6"]
    assert not list(warnings), "the combination has the lever"


def test_batch_that_cannot_change_fits_in_a_narrower_precision() -> None:
    fixed = parse("g (float[256,1024,1024] x) => (float[256,1024,1024] y) { y = Relu(x) }")
    one = _device("ipu", "C600")
    found = Sizing(find_target("ipu"), Conversions(fixed, {}, None), ["fp32", "fp16"]).combination(one, [one], "fp32", None)
    assert (found.fits, found.batch) == (False, 256)
    assert found.remedy is not None
    assert (found.remedy.change, found.remedy.precision, found.remedy.batch) == ("precision fp16", "fp16", 256)


@pytest.mark.parametrize(
    ("target", "device", "count", "note"),
    [
        ("ipu", "C600", 1, ""),
        ("ipu", "C600", 2, "no sharded row is published"),
        ("ipu", "Bow", 4, "the model's error was found on C600; no sharded row is published"),
        ("gcu", "i20", 1, "no figure is published for fp16 and mixed"),
    ],
)
def test_device_has_a_note_of_what_its_error_bar_was_not_compared_with(target: str, device: str, count: int, note: str) -> None:
    found = _device(target, device, count).note
    assert found.startswith(note)
    assert bool(found) == bool(note)


def test_unsupported_operator_has_its_reason_and_no_figures() -> None:
    model = parse("g (float[b,4] x) => (int64[2,n] y) { y = NonZero(x) }")
    sized = _device("gcu", "i20")
    found = Sizing(find_target("gcu"), Conversions(model, {}, 1), ["fp32"]).combination(sized, [sized], "fp32", 1)
    assert (found.fits, found.latency, found.memory, found.remedy) == (False, None, None, None)
    assert found.problem


def test_warnings_of_a_conversion_are_collected_once(caplog: pytest.LogCaptureFixture) -> None:
    import logging

    with collected_warnings() as found:
        for _ in range(2):
            logging.getLogger("stoker.compiler.test").warning("an epsilon was lifted")
        logging.getLogger("stoker.compiler.test").info("read")
    assert list(found) == ["an epsilon was lifted"]
