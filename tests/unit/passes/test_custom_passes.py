from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest

from stoker.compiler.errors import PassError
from stoker.compiler.passes import PassManager, ProtoPass, get_pass, load_custom_passes, registry
from tests.fakes.graphs import as_ir, op_types, parse

MODEL = "g (float[2] x) => (float[2] y) { y = Relu(x) }"
FILE = """\
import onnx
from stoker.compiler.passes import ProtoPass, NodePass, register

@register("relu_to_abs")
class ReluToAbs(ProtoPass):
    def run(self, onnx_model: onnx.ModelProto) -> onnx.ModelProto:
        for node in onnx_model.graph.node:
            if node.op_type == "Relu":
                node.op_type = "Abs"
        return onnx_model

@register("second")
class Second(NodePass):
    def visit(self, node):
        return False
"""


@pytest.fixture(autouse=True)
def _own_registrations() -> Iterator[None]:
    with registry.temporary_registrations():
        yield


def test_passes_of_a_file_are_registered_and_run(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    assert load_custom_passes(path) == ["relu_to_abs", "second"]
    assert op_types(PassManager(["relu_to_abs", "second"]).run(parse(MODEL))) == ["Abs"]
    assert op_types(get_pass("relu_to_abs")(as_ir(parse(MODEL)))) == ["Abs"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import onnx\n\ndef f(:\n", r"broken\.py:3: SyntaxError: "),
        ("x = 1\ny = x / 0\n", r"broken\.py:2: ZeroDivisionError: division by zero$"),
        ("import json\nx = json.loads('{')\n", r"broken\.py:2: JSONDecodeError: "),
        ("x = 1\n", r"broken\.py: registers no pass"),
    ],
)
def test_broken_file_is_reported_in_one_line_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(PassError, match=message) as caught:
        load_custom_passes(path)
    assert "\n" not in str(caught.value)


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(PassError, match="there is no such file"):
        load_custom_passes(tmp_path / "none.py")


class Returning(ProtoPass):
    def __init__(self, result: Callable[[onnx.ModelProto], object]) -> None:
        self._result = result

    def run(self, onnx_model: onnx.ModelProto) -> onnx.ModelProto:  # type: ignore[override]
        return self._result(onnx_model)  # type: ignore[return-value]


def test_proto_pass_that_returns_no_model_is_refused() -> None:
    with pytest.raises(PassError, match="returned NoneType instead of an"):
        PassManager([Returning(lambda model: None)]).run(parse(MODEL))


def test_proto_pass_may_return_another_model_and_whether_it_changed() -> None:
    model = as_ir(parse(MODEL))
    other = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    assert Returning(lambda model: other).apply(model)
    assert op_types(model) == ["Neg"]
    assert not Returning(lambda model: model).apply(model)
