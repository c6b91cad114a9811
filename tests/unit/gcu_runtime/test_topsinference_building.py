"""Parser and optimizer: from an ONNX model to an engine."""

import json
import sys

import numpy as np
import onnx
import pytest
import TopsInference as tops  # noqa: N813 - the name is the vendor's
from onnx import TensorProto, helper

from stoker.backends.gcu.runtime import Status, StatusError
from tests.fakes.onnx_models import model, value

WEIGHT = np.array([[1, 2], [3, 4], [5, 6]], np.float32)


def product(shape=(4, 3), **changes):
    """`y` = x @ WEIGHT, `z` = y + b."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3, 2], WEIGHT.reshape(-1).tolist())
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="product"), helper.make_node("Add", ["y", "b"], ["z"], name="sum")]
    return model(
        nodes, [value("x", shape), value("b", (shape[0], 2))], [value("y", (shape[0], 2)), value("z", (shape[0], 2))], [weight], **changes
    )


@pytest.fixture
def path(tmp_path):
    onnx.save(product(), tmp_path / "product.onnx")
    return tmp_path / "product.onnx"


@pytest.fixture
def symbolic(tmp_path):
    onnx.save(product(("n", 3)), tmp_path / "symbolic.onnx")
    return tmp_path / "symbolic.onnx"


def run(engine, batch):
    x, b = np.ones((batch, 3), np.float32), np.ones((batch, 2), np.float32)
    with tops.device(0, 0):
        outputs: list[np.ndarray] = []
        engine.run({"x": x, "b": b}, outputs)
    return [output.tolist() for output in outputs]


def test_snippet_of_the_article_builds_an_engine(path, tmp_path):
    with tops.device(0, 0):
        onnx_parser = tops.create_parser(tops.ONNX_MODEL)
        network = onnx_parser.read(str(path))
        optimizer = tops.create_optimizer()
        engine = optimizer.build(network)
    assert engine.save_executable(tmp_path / "model.exec")
    assert run(tops.load(tmp_path / "model.exec"), 4) == [[[9, 12]] * 4, [[10, 13]] * 4]


def test_configured_inputs_are_ordered_and_fixed(symbolic):
    parser = tops.create_parser(tops.ONNX_MODEL)
    parser.set_input_names("b,x")
    parser.set_input_shapes("2,2:2,3")
    parser.set_input_dtypes("DT_FLOAT32,DT_FLOAT32")
    parser.set_output_names(["z"])
    parser.set_output_dtypes([tops.DT_FLOAT32])
    assert parser.enable_graph_builder()
    engine = tops.create_optimizer().build(parser.read(symbolic))
    assert (engine.get_output_num(), engine.get_output_name(0), engine.get_input_shape(0)[0]) == (1, "z", 2)
    assert run(engine, 2) == [[[10, 13]] * 2]
    for setter in (
        parser.set_input_names,
        parser.set_input_shapes,
        parser.set_input_dtypes,
        parser.set_output_names,
        parser.set_output_dtypes,
    ):
        assert setter(None)
    parser.set_input_shapes([[3, 3], [3, 2]])
    assert tops.create_optimizer().build(parser.read(symbolic)).get_output_num() == 2


def test_models_in_memory_are_read_too(path):
    parser = tops.create_parser()
    for network in (parser.read_from_str(path.read_bytes()), parser.read_object(product())):
        assert run(tops.create_optimizer().build(network), 4)[0] == [[9, 12]] * 4


def test_network_is_printed_layer_by_layer(path, capsys):
    network = tops.create_parser().read(path)
    network.dump()
    assert network.get_layer_num() == 2
    shown = capsys.readouterr().out
    assert "network 'product': 2 layers" in shown
    assert "input  x: FLOAT [4, 3]" in shown
    assert "0: MatMul 'product' (x, w) -> y" in shown


@pytest.mark.parametrize(("flag", "precision"), [(tops.KDEFAULT, "fp32"), (tops.KFP16, "fp16"), (tops.KFP16_MIX, "mixed"), (2, "fp16")])
def test_build_flag_sets_the_engines_precision(path, tmp_path, flag, precision):
    from stoker.backends.gcu.executable import read_header

    optimizer = tops.create_optimizer()
    assert optimizer.set_build_flag(flag)
    assert optimizer.get_build_flag() == flag
    optimizer.build(tops.create_parser().read(path)).save_executable(tmp_path / "model.exec")
    assert read_header(tmp_path / "model.exec").precision == precision


def test_compile_options_are_a_dict_or_its_json(path, caplog):
    optimizer = tops.create_optimizer()
    assert optimizer.set_compile_options(json.dumps({"resource_mode": "1c"}))
    assert json.loads(optimizer.get_compile_options()) == {"resource_mode": "1c"}
    assert optimizer.build(tops.create_parser().read(path)).get_input_num() == 2
    assert optimizer.set_compile_options({"hlir_options": "tops-hlir-pipeline{non-dtu=true}"})
    assert "'hlir_options' has no effect" in caplog.text


@pytest.mark.parametrize(
    ("call", "status", "says"),
    [
        (lambda p, o, f: tops.create_parser(tops.TF_MODEL), "TIF_PARSER_UNSUPPORTED_MODEL", "convert to ONNX first"),
        (lambda p, o, f: tops.create_parser(9), "TIF_INVALID_PARAM", "there is no model type 9"),
        (lambda p, o, f: p.read("nowhere.onnx"), "TIF_LOAD_NON_EXIST_FILE", "there is no file 'nowhere.onnx'"),
        (lambda p, o, f: p.read(product()), "TIF_INVALID_PARAM", "a path is needed, not ModelProto"),
        (lambda p, o, f: p.read(__file__), "TIF_PARSER_UNSUPPORTED_MODEL", "is no ONNX"),
        (lambda p, o, f: p.read_from_str(b"\xff\xff"), "TIF_PARSER_UNSUPPORTED_MODEL", "no ONNX model"),
        (lambda p, o, f: p.read_from_str("text"), "TIF_INVALID_PARAM", "bytes are needed, not str"),
        (lambda p, o, f: p.read_object(b"bytes?"), "TIF_PARSER_UNSUPPORTED_MODEL", "no ONNX model"),
        (lambda p, o, f: p.read_object(7), "TIF_INVALID_PARAM", "an onnx.ModelProto is needed, not int"),
        (lambda p, o, f: p.set_input_names([]), "TIF_INVALID_PARAM", "expected a list of names"),
        (lambda p, o, f: p.set_input_names("a,a"), "TIF_INVALID_PARAM", "a name stands twice"),
        (lambda p, o, f: p.set_input_dtypes(["DT_COMPLEX"]), "TIF_UN_SUPPORTED_DATA_TYPE", "has a type that does not exist"),
        (lambda p, o, f: p.set_input_dtypes(7), "TIF_INVALID_PARAM", "expected a list of DT_"),
        (lambda p, o, f: p.set_input_shapes("1,x"), "TIF_INVALID_PARAM", "not '1,x'"),
        (lambda p, o, f: p.set_input_shapes([[-1, 3]]), "TIF_MIS_MATCHED_SHAPE_OR_DIM", "is not static"),
        (lambda p, o, f: p.set_input_shapes([[1] * 9]), "TIF_MIS_MATCHED_SHAPE_OR_DIM", "has 9 dimensions; the device takes 8"),
        (lambda p, o, f: p.set_input_names("x") and p.read(f), "TIF_NOT_FOUND", "set_input_names lacks inputs of the model: b"),
        (lambda p, o, f: p.set_input_names("x,c") and p.read(f), "TIF_NOT_FOUND", "the model has no input c; its inputs are x, b"),
        (lambda p, o, f: p.set_output_names("q") and p.read(f), "TIF_NOT_FOUND", "the model has no output q; its outputs are y, z"),
        (lambda p, o, f: p.set_input_dtypes("DT_FLOAT32") and p.read(f), "TIF_MIS_MATCHED_DATA_TYPE", "has 1 types for 2 inputs"),
        (lambda p, o, f: p.set_output_dtypes("DT_FLOAT32,DT_INT64") and p.read(f), "TIF_MIS_MATCHED_DATA_TYPE", "output 'z' is float32"),
        (
            lambda p, o, f: p.set_input_shapes([[4, 3]]) and p.read(f),
            "TIF_MIS_MATCHED_SHAPE_OR_DIM",
            "has 1 shapes; the model has 2 inputs",
        ),
        (lambda p, o, f: p.set_input_shapes("4,5:4,2") and p.read(f), "TIF_MIS_MATCHED_SHAPE_OR_DIM", r"\[4, 3\] in the model; \[4, 5\]"),
        (lambda p, o, f: o.set_build_flag(tops.KINT8_MIX_FP32), "TIF_UN_SUPPORTED_DATA_TYPE", "not in int8"),
        (lambda p, o, f: o.set_build_flag(tops.KREFIT), "TIF_INVALID_PARAM", "cannot be built"),
        (lambda p, o, f: o.set_build_flag("KFP16"), "TIF_INVALID_PARAM", "'KFP16' cannot be built; there are KDEFAULT"),
        (lambda p, o, f: o.set_compile_options("{"), "TIF_INVALID_PARAM", "no JSON"),
        (lambda p, o, f: o.set_compile_options("[]"), "TIF_INVALID_PARAM", "a JSON object or dict is needed, not list"),
        (lambda p, o, f: o.build(f), "TIF_INVALID_PARAM", "what a parser has read is needed"),
        (
            lambda p, o, f: o.set_compile_options({"resource_mode": "9c"}) and o.build(p.read(f)),
            "TIF_INVALID_PARAM",
            "resource_mode is '9c'",
        ),
    ],
)
def test_failed_build_is_raised_and_recorded(path, call, status, says):
    manager = tops.create_error_manager()
    with pytest.raises(StatusError, match=says) as caught:
        call(tops.create_parser(), tops.create_optimizer(), path)
    assert caught.value.status is Status[status]
    assert manager.get_error_count() == 1


def test_model_without_a_fixed_shape_needs_one(symbolic):
    with pytest.raises(StatusError) as caught:
        tops.create_optimizer().build(tops.create_parser().read(symbolic))
    assert caught.value.status is Status.TIF_MIS_MATCHED_SHAPE_OR_DIM


def test_unsupported_operators_are_named_with_their_status():
    unknown = model([helper.make_node("Det", ["x"], ["y"], name="determinant")], [value("x", (4, 3, 3))], [value("y", (4,))])
    with pytest.raises(StatusError, match="determinant") as caught:
        tops.create_optimizer().build(tops.create_parser().read_object(unknown))
    assert caught.value.status is Status.TIF_UN_SUPPORTED_OPERATOR
    assert str(caught.value).count("TIF_UN_SUPPORTED_OPERATOR") == 1


def test_missing_compiler_names_the_package_to_install(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "TopsInference.onnx_network", None)
    with pytest.raises(StatusError, match=r"pip install 'stoker\[compile\]'") as caught:
        tops.create_parser().read(path)
    assert caught.value.status is Status.TIF_RUNTIME_PREREQUISITE_MISSING
