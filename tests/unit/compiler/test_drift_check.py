"""Every conversion is compared with its source; one that changed the function of the model fails, on each way to compile."""

import logging
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from model_compiler.compiling import compile_fields

from stoker.backends.gcu.compile.target import build
from stoker.backends.ipu.compile.compiler import compile_model
from stoker.compiler.cli import CHECK_FAILED
from stoker.compiler.cli import main as compile_command
from stoker.compiler.convert import drift_check
from stoker.compiler.convert.converter import Converter
from stoker.compiler.errors import CheckError, NotComparableError
from stoker.compiler.options import CompilerOptions
from stoker.compiler.passes.registry import pass_class
from tests.fakes.graphs import parse

MODEL = parse("g (float[n,4] x) => (float[n,4] y) { a = Identity(x) y = Exp(a) }")
WRONG = "the converted model computes something else than its source at batch 4: output 'y' has a signal to noise of"


@pytest.fixture
def wrong_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A built-in pass of every conversion that has a defect: Exp becomes Sigmoid."""

    def change(self: object, model: ir.Model) -> bool:
        for node in model.graph:
            if node.op_type == "Exp":
                node.op_type = "Sigmoid"
        return True

    monkeypatch.setattr(pass_class("eliminate_identity"), "run", change)


def words(tmp_path: Path, target: str, *more: str) -> list[str]:
    onnx.save(MODEL, tmp_path / "m.onnx")
    batch = ["--batch_sizes", "4"] if target == "gcu" else ["--batch_size", "4", "--batch_axis", "0"]
    return ["--target", target, "-i", str(tmp_path / "m.onnx"), "--output_dir", str(tmp_path / "out"), *batch, *more]


@pytest.mark.usefixtures("wrong_pass")
@pytest.mark.parametrize("target", ["ipu", "gcu", "cpu"])
def test_changed_function_fails_the_command(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compile_command(words(tmp_path, target, "--export_popef")) == CHECK_FAILED
    assert (WRONG if target != "cpu" else WRONG.replace("batch 4", "batch 1")) in capsys.readouterr().err
    assert not list(tmp_path.glob("out/*"))
    assert compile_command(words(tmp_path, target, "--export_popef", "--allow_drift")) == 0
    assert "WARNING the converted model computes something else" in capsys.readouterr().err


@pytest.mark.usefixtures("wrong_pass")
def test_changed_function_fails_both_python_interfaces() -> None:
    with pytest.raises(CheckError, match="at batch 4"):
        Converter(input_shape={"x": (4, 4)}).convert(MODEL)
    with pytest.raises(CheckError, match="at batch 1"):
        build(MODEL, batch_sizes=[1, 4])


@pytest.mark.usefixtures("wrong_pass")
def test_changed_function_fails_a_request_of_adlik(tmp_path: Path) -> None:
    fields = {"serving_type": "engine", "model_name": "m", "max_batch_size": 4, "input_model": MODEL, "export_path": str(tmp_path)}
    with pytest.raises(CheckError, match="at batch 1"):
        compile_fields(fields)
    assert compile_fields({**fields, "allow_drift": True}).exists()


def test_smallest_middle_and_largest_batch_are_compared(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    build(MODEL, batch_sizes=[1, 2, 4, 8, 16])
    found = [record.message for record in caplog.records if record.name.endswith("drift_check")]
    assert found == [f"compared with the source at batch {size}" for size in (1, 4, 16)]


def test_narrow_precision_has_its_own_limit() -> None:
    model = parse("g (float[2,4] x) => (float[2,4] y) { y = Mul(x, w) }", {"w": np.full(4, 1.0009, np.float32)})
    Converter(precision="fp16").convert(model)  # 1e-3 off, which FP32 may not be
    large = parse("g (float[2,4] x) => (float[2,4] y) { z = Mul(x, w) y = Mul(z, w) }", {"w": np.full(4, 1e4, np.float32)})
    with pytest.raises(CheckError, match="fp16 needs 30 dB"):
        Converter(precision="fp16").convert(large)


def test_random_output_is_named_as_not_comparable(caplog: pytest.LogCaptureFixture) -> None:
    Converter().convert(parse("g (float[2,4] x) => (float[2,4] y) { y = RandomNormalLike(x) }"))
    assert [record.message for record in caplog.records] == ["output 'y' is not comparable with the source's: random numbers"]


def test_inputs_that_cannot_be_generated_are_named(caplog: pytest.LogCaptureFixture) -> None:
    float8 = parse("g (float8e4m3fn[2,4] x) => (float[2,4] y) { y = Cast<to = 1>(x) }", opset=19)
    Converter(convert_version=19).convert_internal(float8)
    assert "not compared with its source: input 'x' is of tensor(float8e4m3fn), which numpy lacks" in caplog.text.replace(" at batch 2", "")


def test_expensive_batch_is_compared_at_fewer_rows_and_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(drift_check, "_seconds", lambda source, shapes: 1.25)
    caplog.set_level(logging.INFO)
    Converter(batch_size=64, batch_axis=0).convert_internal(MODEL)
    assert [record.message for record in caplog.records if record.name.endswith("drift_check")] == [
        "the conversion is compared with its source at batch 4 of 64: more takes over 10 s",
        "compared with the source at batch 4",
    ]


def test_run_beyond_the_time_is_ended_and_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(drift_check, "LIMIT_S", 0.0)
    monkeypatch.setattr(drift_check, "_fitting_rows", lambda source, converted, rows: rows)
    model = parse(
        "g (float[2000,300] x) => (float[2000,300] y) { "
        + " ".join(f"a{at} = MatMul({'x' if not at else f'a{at - 1}'}, w)" for at in range(60))
        + " y = Relu(a59) }",
        {"w": np.eye(300, dtype=np.float32)},
    )
    Converter().convert_internal(model)
    assert "the source model runs longer than 0 s" in caplog.text


@pytest.mark.parametrize("flag", ["fp16", "mixed"])
def test_type_that_the_gcu_compiler_chooses_is_compared(flag: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = parse(
        "g (float[n,4] x) => (float[n,4] y) { z = MatMul(x, large) y = MatMul(z, small) }",
        {"large": np.full((4, 4), 6e4, np.float32), "small": np.full((4, 4), 1e-4, np.float32)},
    )
    with pytest.raises(CheckError, match=r"the compiled model computes something else than its source: output 'y'.* fp16 needs 30 dB"):
        build(model, batch_sizes=[1, 4], build_flag=flag)
    onnx.save(model, tmp_path / "m.onnx")
    command = ["--target", "gcu", "-i", str(tmp_path / "m.onnx"), "--output_dir", str(tmp_path), "--batch_sizes", "1", "--build_flag", flag]
    assert compile_command([*command, "--export_popef"]) == CHECK_FAILED
    assert compile_command([*command, "--export_popef", "--allow_drift"]) == 0
    assert "the compiled model computes something else" in caplog.text


def test_half_partial_sums_are_compared() -> None:
    rows = np.repeat(np.array([3e4, -3e4], np.float16), 64).reshape(128, 1)
    model = parse(
        "g (float16[2,128] x) => (float16[2,1] y) { o = Mul(x, zero) p = Add(o, one) y = MatMul(p, w) }",
        {"zero": np.zeros(1, np.float16), "one": np.ones(1, np.float16), "w": rows},
    )
    compile_model(model, (), CompilerOptions(partials_type="float"))
    with pytest.raises(CheckError, match="the compiled model computes something else"):
        compile_model(model, (), CompilerOptions(partials_type="half"))


def test_compiled_type_that_is_not_compared_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise NotComparableError("check: the source model takes over 10 s")

    monkeypatch.setattr(drift_check, "compare_models", stopped)
    drift_check.check_lowered(MODEL, MODEL, "fp16", allow_drift=False)
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "what is compiled was not compared with the converted model: the source model takes over 10 s")
    ]
