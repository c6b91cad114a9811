"""`stoker compile`: its files, its output, and its failures."""

import io
import json
import logging
from pathlib import Path

import onnx
import pytest

from stoker.compiler.cli_arguments import completion_script
from stoker.compiler.errors import CompileError, Unsupported, UnsupportedOperators
from stoker.compiler.plan import all_specs
from stoker.compiler.reports import report_measurement
from stoker.compiler.target import Measurement
from tests.fakes.fake_target import FakeTarget
from tests.fakes.graphs import model_of, parse, tensor


def test_model_is_converted_to_the_requested_opset(stoker_compile, folder: Path) -> None:
    ran = stoker_compile("-i", "model.onnx", "--input_shape", "x=4,3", "--convert_version", "11", "--output_model", "out.onnx")
    assert (ran.code, ran.out) == (0, "wrote out.onnx\n")
    model = onnx.load(folder / "out.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [each.version for each in model.opset_import] == [11]
    assert [size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim] == [4, 3]


def test_dashes_and_underscores_spell_the_same_options(stoker_compile, folder: Path) -> None:
    assert stoker_compile("--input-model=model.onnx", "--batch-size", "2", "--batch_axis", "0", "--output-dir", "out").code == 0
    assert (folder / "out" / "model_converted.onnx").exists()


def test_executable_is_written_without_an_onnx_file_unless_that_is_named(stoker_compile, folder: Path) -> None:
    ran = stoker_compile("-i", "model.onnx", "--batch_size", "2", "--batch_axis", "0", "--export_popef", "--output_dir", "out")
    assert ran.code == 0
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["executable.fake"]
    assert json.loads((folder / "out" / "executable.fake").read_text())["model"]["inputs"] == ["x"]
    assert "wrote out/executable.fake" in ran.out
    assert "device: fake" in ran.out


def test_missing_target_is_refused_unless_implied(stoker_compile) -> None:
    ran = stoker_compile("-i", "model.onnx", default_target=None)
    assert ran.code == 2
    assert ran.err == "stoker compile: error: --target is missing (or `target:` in the file of --config_yaml); installed targets: fake\n"


def test_error_of_an_unknown_target_lists_the_installed_ones(stoker_compile) -> None:
    ran = stoker_compile("-i", "model.onnx", "--target", "fakir")
    assert (ran.code, ran.err) == (2, "stoker compile: error: there is no target 'fakir'; did you mean fake?; installed: fake\n")


def test_target_is_found_by_its_alias(stoker_compile) -> None:
    assert stoker_compile("-i", "model.onnx", "--input_shape", "x=1,3", "--target", "pretend").code == 0


def test_error_of_an_unknown_option_names_the_nearest(stoker_compile) -> None:
    ran = stoker_compile("--inptu_model", "model.onnx")
    assert ran.code == 2
    assert ran.err.startswith("stoker compile: error: there is no option --inptu_model; did you mean --input_model")


def test_variable_dimensions_are_listed_all_at_once(stoker_compile, folder: Path) -> None:
    graph = parse("g (float[n,3] a, float[n,m] b) => (float[n,3] y) { y = Add(a, a) }")
    onnx.save(graph, folder / "open.onnx")
    ran = stoker_compile("-i", "open.onnx", "--export_popef")
    assert ran.code == 1
    assert all(each in ran.err for each in ("'a' dimension 0", "'b' dimension 0", "'b' dimension 1"))
    assert sorted(path.name for path in folder.iterdir()) == ["model.onnx", "open.onnx"]


def test_known_dimension_cannot_be_changed(stoker_compile) -> None:
    ran = stoker_compile("-i", "model.onnx", "--input_shape", "x=1,4")
    assert ran.code == 1
    assert "input 'x' dimension 1 is 3 in the model and cannot be changed to 4" in ran.err


def test_failed_compilation_leaves_no_file(stoker_compile, target: FakeTarget, folder: Path) -> None:
    target.rejection = UnsupportedOperators("fake", [Unsupported("n1", "Loop", "no loops"), Unsupported("n2", "Scan", "no scans")])
    ran = stoker_compile("-i", "model.onnx", "--input_shape", "x=1,3", "--export_popef")
    assert ran.code == 1
    assert "Loop (node 'n1'): no loops\n  Scan (node 'n2'): no scans" in ran.err
    assert "Traceback" not in ran.err
    assert [path.name for path in folder.iterdir()] == ["model.onnx"]


def test_failed_compilation_preserves_the_existing_executable(stoker_compile, target: FakeTarget, folder: Path) -> None:
    (folder / "executable.fake").write_text("old")
    target.rejection = CompileError("it does not fit")
    assert stoker_compile("-i", "model.onnx", "--input_shape", "x=1,3", "--export_popef").code == 1
    assert (folder / "executable.fake").read_text() == "old"


def test_internal_error_prints_one_line_and_a_traceback_on_request(stoker_compile, target: FakeTarget) -> None:
    target.rejection = KeyError("oops")  # type: ignore[assignment] # what no target should raise
    words = ("-i", "model.onnx", "--input_shape", "x=1,3", "--export_popef")
    plain, debug = stoker_compile(*words), stoker_compile(*words, "--logging_level", "DEBUG")
    assert plain.code == debug.code == 1
    assert "internal error: KeyError: 'oops'" in plain.err
    assert "Traceback" not in plain.err
    assert "Traceback" in debug.err


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "there is no file"), (b"not an onnx file", "cannot be parsed"), (b"", "neither nodes nor outputs")],
)
def test_file_that_is_not_a_model_is_refused_in_one_line(stoker_compile, folder: Path, content: bytes | None, reason: str) -> None:
    if content is not None:
        (folder / "broken.onnx").write_bytes(content)
    ran = stoker_compile("-i", "broken.onnx")
    assert ran.code == 1
    assert reason in ran.err.splitlines()[-1]


def test_invalid_graph_is_refused_with_what_the_checker_found(stoker_compile, folder: Path) -> None:
    bad = model_of([onnx.helper.make_node("Relu", ["nowhere"], ["y"])], [tensor("x", [1])], [tensor("y", [1])])
    onnx.save(bad, folder / "bad.onnx")
    ran = stoker_compile("-i", "bad.onnx")
    assert ran.code == 1
    assert "nowhere" in ran.err


def test_run_prints_the_lines_that_scripts_parse(stoker_compile, folder: Path) -> None:
    ran = stoker_compile("-i", "model.onnx", "--input_shape", "x=1,3", "--run")
    assert ran.code == 0
    assert "Bs: 2\nLatency: 1.50ms (simulated)\nTput: 1333\n" in ran.out
    assert [path.name for path in folder.iterdir()] == ["model.onnx"]


def test_latencies_far_below_a_millisecond_are_printed_with_enough_digits() -> None:
    out = io.StringIO()
    report_measurement(Measurement(batch_size=32, calls=1, latency_s=16.7432e-6, throughput=1911263.0), out)
    assert "Latency: 0.0167ms\n" in out.getvalue()


def test_showing_prints_models_and_io(stoker_compile) -> None:
    ran = stoker_compile("-i", "model.onnx", "--input_shape", "x=4,3", "--show", "--show_io_stat")
    assert ran.code == 0
    assert "[batch,3]" in ran.out


def test_checking_prints_the_error_figures(stoker_compile) -> None:
    ran = stoker_compile("-i", "model.onnx", "--input_shape", "x=4,3", "--check")
    assert ran.code == 0
    row = next(line for line in ran.out.splitlines() if "[4, 2]" in line)
    name, _, worst, *_ = [cell.strip() for cell in row.strip("│ ").split("│")]
    assert name == "y"
    assert float(worst) < 1e-6


def test_options_of_the_compiler_reach_the_target(stoker_compile, target: FakeTarget) -> None:
    words = ("--ipu_version", "ipu21", "--num_io_tiles", "32", "--compiler_options", "partials_type=float", "num_ipus=2")
    assert stoker_compile("-i", "model.onnx", "--input_shape", "x=1,3", "--export_popef", "--batches_per_step", "8", *words).code == 0
    assert target.options is not None
    assert (target.options.ipu_version, target.options.num_io_tiles, target.options.batches_per_step) == ("ipu21", 32, 8)
    assert (target.options.partials_type, target.options.num_ipus) == ("float", 2)


def test_default_ipu_version_is_ipu2_unless_compiler_options_set_it(stoker_compile, target: FakeTarget) -> None:
    words = ("-i", "model.onnx", "--input_shape", "x=1,3", "--export_popef")
    assert stoker_compile(*words).code == 0
    assert target.options is not None
    assert target.options.ipu_version == "ipu2"
    assert stoker_compile(*words, "--compiler_options", "ipu_version=ipu21").code == 0
    assert target.options.ipu_version == "ipu21"


def test_options_without_effect_warn_once_each(stoker_compile) -> None:
    ran = stoker_compile("-i", "model.onnx", "--input_shape", "x=1,3", "--perf_tuner", "--optimize_internal_exchange_code")
    assert ran.code == 0
    warnings = [line for line in ran.err.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 2
    assert {"perf_tuner" in line or "optimize_internal_exchange_code" in line for line in warnings} == {True}


def test_old_names_work_with_a_warning(stoker_compile, target: FakeTarget) -> None:
    ran = stoker_compile("-i", "model.onnx", "--input_shape", "x=1,3", "--batch_per_step", "4", "--export_popef")
    assert ran.code == 0
    assert "option 'batch_per_step' is deprecated: it is called 'batches_per_step' today" in ran.err
    assert target.options is not None
    assert target.options.batches_per_step == 4


def test_phases_without_a_terminal_are_lines_and_can_be_disabled(stoker_compile) -> None:
    words = ("-i", "model.onnx", "--input_shape", "x=1,3")
    assert "converting model.onnx: " in stoker_compile(*words).err
    assert stoker_compile(*words, "--disable_compilation_progress_bar").err == ""


def test_logging_leaves_other_loggers_unchanged(stoker_compile) -> None:
    before = (
        logging.getLogger("stoker.compiler").level,
        list(logging.getLogger("stoker.compiler").handlers),
        list(logging.getLogger().handlers),
    )
    stoker_compile("-i", "model.onnx", "--logging_level", "DEBUG")
    after = (
        logging.getLogger("stoker.compiler").level,
        list(logging.getLogger("stoker.compiler").handlers),
        list(logging.getLogger().handlers),
    )
    assert after == before


def test_passes_are_listed_with_a_description(stoker_compile, folder: Path) -> None:
    (folder / "mine.py").write_text(
        "from stoker.compiler.passes import Pass, register\n"
        "@register('replace_add_with_sub')\n"
        "class Replace(Pass):\n"
        "    '''Replaces Add with Sub.'''\n"
        "    def run(self, model):\n"
        "        return False\n"
    )
    ran = stoker_compile("--list_all_passes", "--custom_pass_config", "mine.py")
    assert ran.code == 0
    assert "replace_add_with_sub: Replaces Add with Sub.\n" in ran.out
    assert any(line.startswith("const_batch_size: ") for line in ran.out.splitlines())


def test_help_lists_every_option(stoker_compile) -> None:
    ran = stoker_compile("--help")
    tensorflow = stoker_compile("tf2onnx", "--help")
    assert ran.code == tensorflow.code == 0
    text = ran.out + tensorflow.out
    assert [name for name in all_specs() if f"--{name}" not in text] == []
    assert "--quantize " not in text
    assert "[default: ]" not in text
    assert "`ipu`, `gcu` or `cpu`" in " ".join(text.split())


def test_version_is_that_of_the_distribution(stoker_compile) -> None:
    assert stoker_compile("-v").out.startswith("stoker ")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_options_choices_and_paths(stoker_compile, shell: str) -> None:
    ran = stoker_compile("--print_completion", shell)
    assert ran.code == 0
    assert "--input_shape" in ran.out
    assert '--precision) COMPREPLY=($(compgen -W "fp32 fp16 fp8 fp8_weight bf16 int8 int8_dynamic"' in ran.out
    assert ran.out == completion_script(shell, "stoker compile")


def test_missing_tf2onnx_is_named_for_tensorflow_models(stoker_compile, folder: Path) -> None:
    (folder / "saved").mkdir()
    ran = stoker_compile("-i", "saved", "tf2onnx", "--saved_model", "--signature_def", "serving_default")
    assert ran.code == 1
    assert "needs the packages tf2onnx and tensorflow" in ran.err


def test_served_version_is_written(stoker_compile, folder: Path) -> None:
    words = ("-i", "model.onnx", "--batch_size", "2", "--batch_axis", "0", "--model_repository", "repo", "--model_name", "m")
    assert stoker_compile(*words).code == stoker_compile(*words).code == 0
    assert sorted(path.name for path in (folder / "repo" / "m").iterdir()) == ["1", "2", "config.pbtxt"]
    assert 'name: "y" data_type: TYPE_FP32 dims: [2]' in (folder / "repo" / "m" / "config.pbtxt").read_text()
    assert not (folder / "executable.fake").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--batch_size", "2"), "batch_size needs batch_axis"),
        (("--model_repository", "repo"), "--model_repository and --model_name go together"),
        (("--precision", "fp64"), "precision: 'fp64' is none of fp32, fp16, fp8, fp8_weight, bf16, int8"),
        (("--input_shape", "x:1,3"), "input_shape: expected NAME=d0,d1,..."),
        (("--only_manual_sharding",), "only_manual_sharding needs manual_sharding_config"),
        (("--skip_passes", "gelu_patern"), "skip_passes: there is no pass 'gelu_patern'; did you mean gelu_pattern"),
        (("--compiler_options", "num_ipu=2"), "there is no option 'num_ipu'; did you mean num_ipus"),
        (("--inputs", "a"), "there is no option --inputs"),
        (("--available_memory_proportion", "1.5"), "expected a number above 0 and up to 1"),
        (("stray",), "'stray' belongs to no option"),
    ],
)
def test_bad_usage_is_reported_and_ends_with_exit_code_2(stoker_compile, words: tuple[str, ...], reason: str) -> None:
    ran = stoker_compile("-i", "model.onnx", *words)
    assert reason in ran.err
    assert ran.code == 2
