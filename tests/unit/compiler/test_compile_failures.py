"""How `stoker compile` fails: every reason in one clear message, all of a kind at once, and never a traceback."""

import errno
import io
import sys
import warnings
from pathlib import Path

import onnx
import pytest
from onnx import helper

import stoker.compiler.cli
from tests.fakes.graphs import model_of, tensor


def test_unknown_onnx_operators_are_listed_all_at_once(stoker_compile, folder: Path) -> None:
    nodes = [
        helper.make_node("Reluu", ["x"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Foo", ["b"], ["y"], name="last"),
    ]
    onnx.save(model_of(nodes, [tensor("x", [2, 3])], [tensor("y", [2, 3])], {}, opset=13), folder / "unknown.onnx")
    ran = stoker_compile("-i", "unknown.onnx")
    assert ran.code == 1
    assert ran.err.splitlines()[-3:] == [
        "stoker compile: error: the model is no valid ONNX model: 2 node(s) are of operators that its opset does not have:",
        "  Reluu (node 'first'): opset 13 has no such operator",
        "  Foo (node 'last'): opset 13 has no such operator",
    ]


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("--pack_args", "foo=1"), 1, "pass 'packed_transformer': there is no setting 'foo'; it takes max_valid_num"),
        (("--fp8_params", "F143,F143,1"), 2, "fp8_params: 'F143,F143,1'; expected input format, weight format"),
        (("--fp8_params", "F143,F144,1,1"), 2, "F144"),
        (("--checkpoints", "nosuch"), 1, "no node of the main graph makes 'nosuch'"),
        (("--remove_outputs", "nosuch"), 1, "there is no output 'nosuch'; the outputs are y"),
        (("--serialize_matmul", "nosuch=2"), 1, "there is no MatMul node named 'nosuch'|has no MatMul node named 'nosuch'"),
        (("--custom_library_so_paths", "no.so"), 2, "custom_library_so_paths: there is no file no.so"),
        (("--custom_pass_config", "no.py"), 1, "no.py: there is no such file of custom passes"),
        (("--convert_version", "3"), 2, "convert_version 3: expected 7 to"),
        (("--output_dir", "model.onnx/inside"), 1, "cannot write to folder model.onnx/inside"),
    ],
)
def test_each_failure_is_one_line_without_a_traceback(stoker_compile, words: tuple[str, ...], code: int, reason: str) -> None:
    ran = stoker_compile("-i", "model.onnx", "--input_shape", "x=4,3", "--disable_compilation_progress_bar", *words)
    assert ran.code == code
    assert ran.err.startswith("stoker compile: error: ")
    assert len(ran.err.splitlines()) == 1
    assert any(each in ran.err for each in reason.split("|"))


def test_custom_pass_that_fails_is_named(stoker_compile, folder: Path) -> None:
    (folder / "mine.py").write_text(
        "from stoker.compiler.passes import Pass, register\n\n"
        "@register('breaks')\nclass Breaks(Pass):\n    'Fails.'\n    def run(self, model):\n        raise ValueError('inside')\n"
    )
    ran = stoker_compile("-i", "model.onnx", "--input_shape", "x=4,3", "--custom_pass_config", "mine.py", "--passes", "breaks")
    assert (ran.code, ran.err.splitlines()[-1]) == (1, "stoker compile: error: pass 'breaks' failed: ValueError: inside")


def test_skip_list_without_a_match_is_reported(stoker_compile) -> None:
    ran = stoker_compile("-i", "model.onnx", "--input_shape", "x=4,3", "--precision", "fp16", "--fp16_skip_op_types", "MatMul,Sofmax")
    assert ran.code == 0
    assert [line for line in ran.err.splitlines() if line.startswith("WARNING")] == [
        "WARNING fp16_skip_op_types has 'Sofmax': the model has no such operator"
    ]


def test_full_disk_behind_stdout_is_reported_in_one_line(stoker_compile, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    ran = stoker_compile("-i", "model.onnx", "--input_shape", "x=4,3", "--disable_compilation_progress_bar")
    assert (ran.code, ran.err) == (1, "stoker compile: error: stdout cannot be written: No space left on device\n")


@pytest.mark.parametrize("level", ["WARNING", "DEBUG"])
def test_warnings_of_packages_are_debug_messages(capsys: pytest.CaptureFixture[str], level: str) -> None:
    with stoker.compiler.cli._logging(level):
        warnings.simplefilter("always")
        warnings.warn("overflow encountered", RuntimeWarning, stacklevel=1)
    assert ("RuntimeWarning: overflow encountered" in capsys.readouterr().err) == (level == "DEBUG")
