"""`stoker compile --target gcu` and `stoker dump`, run in this process."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

import stoker.compiler.cli
from stoker.backends.gcu.executable import read_executable
from stoker.cli.main import main as stoker_main
from tests.fakes.graphs import parse

MODEL = "g (float[n,3] x, int64[n] place) => (float[n,2] y, int64[n] next) { y = MatMul(x, w) next = Add(place, place) }"


@dataclass(frozen=True)
class Ran:
    """The result of a command line."""

    code: int
    out: str
    err: str


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; it holds `model.onnx`, whose batch is variable."""
    monkeypatch.chdir(tmp_path)
    onnx.save(parse(MODEL, {"w": np.arange(6, dtype=np.float32).reshape(3, 2)}), tmp_path / "model.onnx")
    return tmp_path


@pytest.fixture
def compile_gcu(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def run(*words: str, target: str = "gcu") -> Ran:
        code = stoker.compiler.cli.main(["--target", target, "-i", "model.onnx", "--disable_compilation_progress_bar", *words])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def dump(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def run(*words: str) -> Ran:
        with pytest.raises(SystemExit) as ended:
            stoker_main(["dump", *words])
        captured = capsys.readouterr()
        return Ran(int(ended.value.code or 0), captured.out, captured.err)

    return run


def test_version_with_several_batch_sizes_is_written_into_a_repository(compile_gcu: Callable[..., Ran], folder: Path) -> None:
    served = ("--model_repository", "models", "--model_name", "m", "--model_version", "3")
    ran = compile_gcu(*served, "--batch_sizes", "1,8", "--build_flag", "mixed", "--resource_mode", "3c")
    assert (ran.code, ran.err) == (0, "")
    assert "wrote models/m/3" in ran.out
    assert "device: simulated GCU, i20, 3 cluster(s)" in ran.out
    assert "batch_sizes: 1, 8" in ran.out
    executable = read_executable(folder / "models" / "m" / "3" / "model.exec")
    assert [batch.batch_size for batch in executable.batches] == [1, 8]
    assert (executable.name, executable.precision) == ("m", "mixed")
    config = (folder / "models" / "m" / "config.pbtxt").read_text()
    assert 'backend: "topsinference"' in config
    assert "max_batch_size: 8" in config
    assert "TYPE_INT64" in config


def test_device_accepts_the_integers_that_clients_send(compile_gcu: Callable[..., Ran], folder: Path) -> None:
    assert compile_gcu("--export_popef", "--batch_sizes", "2").code == 0
    executable = read_executable(folder / "model.exec")
    assert [each.dtype.value for each in (*executable.inputs, *executable.outputs)] == ["FP32", "INT64", "FP32", "INT64"]


def test_target_aliases_are_accepted(compile_gcu: Callable[..., Ran], folder: Path) -> None:
    for alias in ("enflame", "topsinference"):
        assert compile_gcu("--export_popef", "--batch_sizes", "2", target=alias).code == 0


def test_run_reports_the_latency_of_the_largest_batch(compile_gcu: Callable[..., Ran]) -> None:
    ran = compile_gcu("--run", "--batch_sizes", "1,8", "--resource_mode", "2c")
    assert ran.code == 0
    assert ran.out.startswith("Bs: 8\nLatency: ")
    assert "modelled for a simulated i20, 2 cluster(s)" in ran.out


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("--batch_sizes", "1,1"), 2, "--batch_sizes: 1, 1 names a size twice"),
        (("--batch_sizes", "0"), 2, "batch_sizes: expected an integer of 1 or more"),
        (("--batch_sizes", "1", "--batch_size", "2", "--batch_axis", "0"), 2, "--batch_sizes and --batch_size exclude each other"),
        (("--batch_sizes", "1", "--build_flag", "int8"), 2, "build_flag: there is no 'int8'"),
        (("--batch_sizes", "1", "--resource_mode", "9c"), 2, "expected a number of clusters from 1 to 6"),
        (("--batch_sizes", "1", "--report", "report"), 2, "--report: target 'gcu' has none"),
        (("--batch_sizes", "1", "--precision", "fp8"), 2, "precision fp8: the i20 has fp32 and fp16"),
        ((), 1, "input 'x' dimension 0 ('n'); input 'place' dimension 0 ('n') [TopsInference: TIF_MIS_MATCHED_SHAPE_OR_DIM]"),
    ],
)
def test_errors_are_one_line(compile_gcu: Callable[..., Ran], folder: Path, words: tuple[str, ...], code: int, reason: str) -> None:
    ran = compile_gcu("--export_popef", *words)
    assert ran.code == code
    assert reason in ran.err
    assert len(ran.err.splitlines()) == 1
    assert not (folder / "model.exec").exists()


def test_other_targets_have_one_batch_size(compile_gcu: Callable[..., Ran]) -> None:
    ran = compile_gcu("--export_popef", "--batch_sizes", "1,2", target="ipu")
    assert (ran.code, "an executable of target 'ipu' has one batch size" in ran.err) == (2, True)


def test_options_of_another_device_are_refused_or_reported_as_idle(compile_gcu: Callable[..., Ran]) -> None:
    ran = compile_gcu("--export_popef", "--batch_size", "2", "--batch_axis", "0", "--build_flag", "fp16", target="ipu")
    assert (ran.code, "build_flag: target 'ipu' has no such option" in ran.err) == (2, True)
    ran = compile_gcu("--export_popef", "--batch_sizes", "2", "--compiler_options", "num_ipus=2", "replication_factor=4")
    assert (ran.code, ran.err) == (0, "WARNING the GCU's compiler has no option num_ipus, replication_factor: it has no effect\n")


def test_dump_prints_an_executable_as_text_and_json(compile_gcu: Callable[..., Ran], dump: Callable[..., Ran]) -> None:
    compile_gcu("--export_popef", "--batch_sizes", "1,8", "--model_repository", "models", "--model_name", "m")
    text = dump("model.exec")
    assert text.code == 0
    assert text.out.startswith("model.exec: model.exec, ")
    for line in ("Model 'm' for a simulated i20, build flag fp32", "  x: FP32[3]", "  next: INT64[]"):
        assert line in text.out.splitlines()
    (report,) = json.loads(dump("--json", "model.exec").out)["files"]
    assert [batch["batch_size"] for batch in report["batches"]] == [1, 8]
    assert len(report["batches"][0]["modelled_run_s"]) == 6
    assert [section["kind"] for section in report["sections"]] == ["DESCRIPTION", "GRAPH", "GRAPH"]
    assert report["size_in_bytes"] == Path("model.exec").stat().st_size


def test_dump_prints_popef_files_too(compile_gcu: Callable[..., Ran], dump: Callable[..., Ran]) -> None:
    assert compile_gcu("--export_popef", "--batch_size", "2", "--batch_axis", "0", target="ipu").code == 0
    assert "PopEF" in dump("executable.popef").out
    (report,) = json.loads(dump("--json", "executable.popef").out)["files"]
    assert report["blobs"] > 0


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "neither a model.exec nor a PopEF file: it is empty"),
        (b"PK\x03\x04 and so on", "neither a model.exec nor a PopEF file: it begins with 50 4b 03 04"),
        (b"\x89GEXEC\r\n cut", "inside a header: it was cut off"),
        (b"\x89PopEF\r\n cut", "inside a header: it was cut off"),
    ],
)
def test_dump_refuses_a_bad_file_with_one_line(tmp_path: Path, dump: Callable[..., Ran], content: bytes, reason: str) -> None:
    path = tmp_path / "bad"
    path.write_bytes(content)
    ran = dump(str(path))
    assert (ran.code, ran.out) == (1, "")
    assert reason in ran.err
    assert len(ran.err.splitlines()) == 1
    assert dump(str(tmp_path / "nowhere")).code == 1


def test_open_batch_is_refused_with_a_text_for_every_entry_point(compile_gcu: Callable[..., Ran]) -> None:
    ran = compile_gcu("--run")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        "stoker compile: error: variable dimensions must be fixed by a batch size (--batch_size with --batch_axis) or an input shape "
        "(--input_shape): input 'x' dimension 0 ('n'); input 'place' dimension 0 ('n') [TopsInference: TIF_MIS_MATCHED_SHAPE_OR_DIM]\n"
    )


def test_several_models_are_refused_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = "{input_model: model.onnx, input_shape: {x: [1, 3], place: [1]}}"
    (folder / "two.yaml").write_text(f"target: gcu\nexport_popef: True\nmodel_fusion: [{model}, {model}]\n")
    code = stoker.compiler.cli.main(["--config_yaml", "two.yaml", "--disable_compilation_progress_bar"])
    assert (code, capsys.readouterr().err) == (
        2,
        "stoker compile: error: the GCU runs one model in an executable: compile each by itself, and serve them side by side "
        "[TopsInference: TIF_INVALID_PARAM]\n",
    )
