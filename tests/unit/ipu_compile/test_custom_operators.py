"""Operators that the user brings along: checked, compiled and run with their library, and refused clearly without."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from stoker.backends.ipu.compile.compiler import cache_key, compile_program
from stoker.backends.ipu.popef.model import ModelBuilder
from stoker.backends.ipu.popef.reader import Reader
from stoker.backends.ipu.program import CUSTOM_LIBRARIES
from stoker.backends.ipu.target import SimulatedIpuTarget
from stoker.compiler.check import compare_models
from stoker.compiler.convert.converter import Converter
from stoker.compiler.convert.shape_functions import register_shape_func, temporary_shape_functions
from stoker.compiler.custom_libraries import library_marks, using_libraries
from stoker.compiler.errors import CompileError, OptionError, UnsupportedOperators
from stoker.compiler.options import CompilerOptions
from stoker.compiler.target import SourceModel
from tests.fakes.graphs import model_of, tensor

SOURCE = Path(__file__).parents[2] / "data" / "custom_operator" / "double.c"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from C: ONNX Runtime loads no operator library written in Python."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    path = tmp_path_factory.mktemp("library") / "libdouble.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", str(path), str(SOURCE)], check=True)
    return path


@pytest.fixture
def shapes() -> Iterator[None]:
    """Registers the shape of the operator's output."""

    def same_as_the_input(_node: onnx.NodeProto, inputs: Sequence[onnx.TypeProto | None]) -> list[onnx.TypeProto]:
        assert inputs[0] is not None
        return [inputs[0]]

    with temporary_shape_functions():
        register_shape_func(["Double"], domain="test.ops")(same_as_the_input)
        yield


def doubled() -> onnx.ModelProto:
    nodes = [
        onnx.helper.make_node("Double", ["x"], ["twice"], name="double", domain="test.ops"),
        onnx.helper.make_node("MatMul", ["twice", "w"], ["y"], name="product"),
    ]
    model = model_of(nodes, [tensor("x", [4, 3])], [tensor("y", [4, 2])], {"w": np.ones((3, 2), np.float32)}, opset=17)
    model.opset_import.append(onnx.helper.make_opsetid("test.ops", 1))
    return model


def converted(library: Path, **options: object) -> SourceModel:
    settings = {"custom_library_so_paths": [str(library)], **options}
    return SourceModel(model=Converter(**settings).convert_internal(doubled()), name="m", custom_libraries=[str(library)])


@pytest.mark.usefixtures("shapes")
@pytest.mark.parametrize("precision", ["fp32", "fp16", "fp8"])
def test_operator_of_a_library_is_converted_checked_compiled_and_run(library: Path, tmp_path: Path, precision: str) -> None:
    source = converted(library, precision=precision, precision_compare=precision == "fp8")
    with using_libraries([library]):
        (error,) = compare_models(doubled(), source.model)
    assert error.max_relative_error < 0.1
    path = tmp_path / "m.popef"
    target = SimulatedIpuTarget()
    target.export([source], CompilerOptions(ipu_version="ipu21"), path)
    assert target.measure(path, calls=2, custom_libraries=[str(library)]).calls == 2
    with pytest.raises(CompileError, match=r"test\.ops.*custom_op_libraries must name libdouble\.so sha256:"):
        target.measure(path, calls=2)


@pytest.mark.usefixtures("shapes")
def test_executable_names_its_operator_library(library: Path, tmp_path: Path) -> None:
    SimulatedIpuTarget().export([converted(library)], CompilerOptions(), tmp_path / "m.popef")
    reader = Reader()
    reader.parse_file(tmp_path / "m.popef")
    noted = ModelBuilder(reader).create_model().program().attributes[CUSTOM_LIBRARIES]
    assert noted == library_marks([library])[0]
    assert noted.startswith("libdouble.so sha256:")


@pytest.mark.usefixtures("shapes")
def test_another_library_misses_the_cache(library: Path, tmp_path: Path) -> None:
    source = converted(library)
    other = tmp_path / "libdouble.so"
    other.write_bytes(library.read_bytes() + b"\0")
    keys = [
        cache_key([SourceModel(model=source.model, name="m", custom_libraries=[str(each)])], CompilerOptions()) for each in (library, other)
    ]
    assert keys[0] != keys[1]


def test_only_the_operator_without_a_library_is_named() -> None:
    with pytest.raises(UnsupportedOperators, match="custom_library_so_paths") as caught:
        compile_program([SourceModel(model=doubled(), name="m")])
    assert [each.node for each in caught.value.operators] == ["double"]  # not the product, whose type is unknown


def test_error_for_an_operator_without_shape_function_names_it(library: Path) -> None:
    with pytest.raises(UnsupportedOperators, match="custom_shape_inference"):
        compile_program([SourceModel(model=doubled(), name="m", custom_libraries=[str(library)])])


def test_unloadable_libraries_are_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="custom_library_so_paths: there is no file"):
        Converter(custom_library_so_paths=str(tmp_path / "no.so"))
    broken = tmp_path / "broken.so"
    broken.write_text("no library")
    with using_libraries([broken]), pytest.raises(CompileError, match=r"broken\.so cannot be loaded"):
        compare_models(doubled(), doubled())
