"""`Converter` and the compiler's Python API make the program that the command makes, with the same modelled times."""

import dataclasses
import json
from pathlib import Path

import onnx
import pytest

from stoker.backends.ipu.compile.compiler import compile_and_get_summary_report, compile_model
from stoker.compiler.cli import main as compile_command
from stoker.compiler.convert.converter import Converter
from stoker.compiler.options import CompilerOptions
from tests.fakes import networks
from tests.fakes.transformers import small_bert

REPOSITORY = Path(__file__).parents[3] / "model_repos"
SAMPLES = {path.parents[1].name: path for path in sorted(REPOSITORY.glob("*/*/model.onnx"))}
MODELS = {
    **{name: onnx.load(path) for name, path in SAMPLES.items()},
    "convolutional": networks.convolutional().model,
    "dense": networks.dense().model,
    "transformer": networks.transformer().model,
    "bert": small_bert(2, 6, layers=2),
}


@pytest.mark.parametrize("precision", ["fp32", "fp16", "fp8", "fp8_weight"])
@pytest.mark.parametrize("name", MODELS)
def test_python_and_command_make_the_same_program(name: str, precision: str, tmp_path: Path) -> None:
    model = MODELS[name]
    onnx.save(model, tmp_path / "m.onnx")
    sizes = {} if model.graph.input[0].type.tensor_type.shape.dim[0].dim_value else {"batch_size": 4, "batch_axis": 0}
    words = ["--target", "ipu", "-i", str(tmp_path / "m.onnx"), "--precision", precision, "--ipu_version", "ipu21"]
    words += [word for option, value in sizes.items() for word in (f"--{option}", str(value))]
    assert compile_command([*words, "--report", str(tmp_path), "--output_dir", str(tmp_path)]) == 0
    by_command = json.loads((tmp_path / "summary_report.json").read_text())

    converted = Converter(precision=precision, fp8_params="F143,F143,-1,-1", **sizes).convert(model)
    options = CompilerOptions(ipu_version="ipu21")
    by_python = json.loads(compile_and_get_summary_report(converted, (), options).to_json())
    for report in (by_command, by_python):
        for graph in report["graphs"]:
            del graph["name"]
            for run in graph["runs"]:
                del run["node"]  # of a node that was split and fused again, the name says so
    assert by_python["graphs"] == by_command["graphs"]
    assert by_python["memory"] == by_command["memory"]


def test_opset_of_the_conversion_changes_no_program() -> None:
    programs = [
        compile_model(Converter(convert_version=version, precision="fp16").convert(MODELS["transformer"])).program
        for version in (11, 13, 18)
    ]
    steps = [[dataclasses.replace(step, node="") for step in program.graphs[0].steps] for program in programs]
    assert steps[0] == steps[1] == steps[2]
