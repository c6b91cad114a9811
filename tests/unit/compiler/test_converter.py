"""`Converter`: shapes, opset, passes, extensions, and the numerics of the result."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from stoker.compiler.convert.converter import Converter, warn_of_no_effect
from stoker.compiler.convert.options import ConversionOptions
from stoker.compiler.convert.recipe import conversion_steps, finish_steps, shape_steps
from stoker.compiler.convert.source import TensorflowOptions, read_onnx, read_tensorflow
from stoker.compiler.errors import CompileError, NotStaticError, OptionError, PassError, ShapeError
from stoker.compiler.passes import get_all_pass_names, get_pass
from tests.fakes.graphs import assert_same_results, assert_valid, model_of, op_types, parse, random_feeds, run_onnx, tensor


@pytest.fixture
def classifier() -> onnx.ModelProto:
    """A convolution, its batch norm, pooling and a dense layer; the batch is variable, the opset old."""
    generator = np.random.default_rng(1)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["conv"], name="Conv_1", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["conv", "scale", "shift", "mean", "variance"], ["norm"], name="Norm_1"),
        helper.make_node("Relu", ["norm"], ["relu"], name="Relu_1"),
        helper.make_node("GlobalAveragePool", ["relu"], ["pool"], name="Pool_1"),
        helper.make_node("Flatten", ["pool"], ["flat"], name="Flatten_1"),
        helper.make_node("Gemm", ["flat", "dense", "bias"], ["y"], name="Gemm_1", transB=1),
    ]
    shapes = {"w": (8, 3, 3, 3), "scale": (8,), "shift": (8,), "mean": (8,), "dense": (5, 8), "bias": (5,)}
    weights = {name: generator.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    weights["variance"] = np.ones(8, np.float32)
    return model_of(nodes, [tensor("x", ["n", 3, 6, 6])], [tensor("y", ["n", 5])], weights, opset=11)


@pytest.mark.parametrize("sizes", [{"batch_size": 4, "batch_axis": 0}, {"input_shape": {"x": [4, 3, 6, 6]}}])
def test_fp32_conversion_equals_the_source(classifier: onnx.ModelProto, sizes: dict[str, object]) -> None:
    converted = Converter(**sizes).convert(classifier)
    assert_valid(converted)
    assert [size.dim_value for size in converted.graph.output[0].type.tensor_type.shape.dim] == [4, 5]
    assert "BatchNormalization" not in op_types(converted)
    assert_same_results(classifier, converted, random_feeds(converted), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp16", 0.02), ("fp8", 0.1), ("fp8_weight", 0.1)])
def test_lower_precisions_are_close_to_the_source(classifier: onnx.ModelProto, precision: str, tolerance: float) -> None:
    converted = Converter(batch_size=4, batch_axis=0, precision=precision).convert_internal(classifier)
    assert converted.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16
    feeds = random_feeds(converted)
    expected = run_onnx(classifier, {"x": feeds["x"].astype(np.float32)})["y"]
    assert np.abs(run_onnx(converted, feeds)["y"] - expected).max() < tolerance * np.abs(expected).max()


def test_layers_are_compared_and_calibration_is_logged(classifier: onnx.ModelProto, tmp_path: Path) -> None:
    options = ConversionOptions(batch_size=4, batch_axis=0, precision="fp8", precision_compare=True)
    Converter.of(options, log_folder=tmp_path / "logs").convert_internal(classifier)
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["precision_compare.log", "quantize.log"]
    text = (tmp_path / "logs" / "precision_compare.log").read_text()
    assert "Conv_1" in text
    assert "Gemm_1" in text


def test_given_model_is_unchanged(classifier: onnx.ModelProto) -> None:
    before = classifier.SerializeToString()
    Converter(batch_size=1, batch_axis=0, precision="fp16").convert(classifier)
    assert classifier.SerializeToString() == before


def test_convert_version_without_adapter_is_kept_or_refused_as_requested(classifier: onnx.ModelProto) -> None:
    settings: dict[str, object] = {"batch_size": 1, "batch_axis": 0, "precision": "fp8"}
    assert Converter(**settings).convert(classifier).opset_import[0].version == 19
    with pytest.raises(CompileError, match="convert_version 11 was asked for"):
        Converter(**settings, convert_version=11).convert(classifier)


def test_integers_and_doubles_become_device_types() -> None:
    graph = parse("g (int64[2] i, double[2] d) => (int64[2] j, double[2] e) { j = Add(i, i) e = Mul(d, d) }")
    converted = Converter().convert(graph)
    kinds = [value.type.tensor_type.elem_type for value in (*converted.graph.input, *converted.graph.output)]
    assert kinds == [TensorProto.INT32, TensorProto.FLOAT, TensorProto.INT32, TensorProto.FLOAT]


def test_variable_dimensions_are_refused_all_at_once() -> None:
    graph = parse("g (float[n] a, float[m,2] b) => (float[n] y) { y = Relu(a) }")
    with pytest.raises(ShapeError, match=r"'a' dimension 0 .*'b' dimension 0"):
        Converter().convert(graph)


def test_checkpoints_are_added_and_outputs_removed() -> None:
    graph = parse("g (float[2] x) => (float[2] y, float[2] z) { h = Exp(x) y = Abs(h) z = Sin(h) }")
    converted = Converter(checkpoints="h", remove_outputs=["z"]).convert(graph)
    assert [value.name for value in converted.graph.output] == ["y", "h"]
    assert "Sin" not in op_types(converted)


def test_skipped_passes_do_not_run(classifier: onnx.ModelProto) -> None:
    skipped = ["fuse_bn_into_conv", "replace_bn_with_mul_add", "batchnorm_workaround"]
    known = [name for name in skipped if name in get_all_pass_names()]
    converted = Converter(batch_size=1, batch_axis=0, skip_passes=known).convert(classifier)
    assert "BatchNormalization" in op_types(converted)


def test_users_pass_runs_last_and_gets_the_internal_opset(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from stoker.compiler.passes import Pass, register\n"
        "@register('add_becomes_sub')\n"
        "class AddBecomesSub(Pass):\n"
        "    def run(self, model):\n"
        "        assert model.opset_imports[''] == 18\n"
        "        for node in model.graph:\n"
        "            if node.op_type == 'Add':\n"
        "                node.op_type = 'Sub'\n"
        "        return True\n"
    )
    graph = parse("g (float[2] a, float[2] b) => (float[2] y) { y = Add(a, b) }")
    converted = Converter(custom_pass_config=str(tmp_path / "mine.py"), passes="add_becomes_sub").convert(graph)
    assert op_types(converted) == ["Sub"]


def test_registered_pass_that_does_not_run_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "idle.py").write_text(
        "from stoker.compiler.passes import Pass, register\n"
        "@register('idle_pass')\n"
        "class Idle(Pass):\n"
        "    def run(self, model):\n"
        "        return False\n"
    )
    Converter(custom_pass_config=str(tmp_path / "idle.py"))
    assert "registers idle_pass, which will not run" in caplog.text


def test_extension_files_that_fail_are_reported(tmp_path: Path) -> None:
    with pytest.raises(PassError, match="there is no such file"):
        Converter(custom_pass_config=str(tmp_path / "no.py"))
    with pytest.raises(CompileError, match="there is no file"):
        Converter(custom_shape_inference=str(tmp_path / "no.py"))
    (tmp_path / "bad.py").write_text("1 / 0\n")
    with pytest.raises(CompileError, match=r"bad\.py.*ZeroDivisionError"):
        Converter(custom_shape_inference=str(tmp_path / "bad.py"))


def test_unknown_pass_is_refused_before_any_model_is_read() -> None:
    with pytest.raises(OptionError, match="passes: there is no pass 'fused_atention'"):
        Converter(passes=["fused_atention"])


def test_manual_sharding_changes_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "cut.yaml").write_text("- {node: first, device: 0, stage: 0}\n")
    graph = parse("g (float[n] x) => (float[n] y) { h = Relu(x) y = Abs(h) }", opset=13)
    graph.graph.node[0].name, graph.graph.node[1].name = "first", "second"
    converted = Converter(only_manual_sharding=True, manual_sharding_config=str(tmp_path / "cut.yaml")).convert(graph)
    assert converted.opset_import[0].version == 13
    assert op_types(converted) == ["Relu", "Abs"]
    assert converted.graph.node[0] != graph.graph.node[0]


def test_options_without_effect_warn_once_for_all_models(caplog: pytest.LogCaptureFixture) -> None:
    options = ConversionOptions(optimize_internal_exchange_code=True)
    warn_of_no_effect([options, options])
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("given", "with_it", "warning"),
    [
        ({"fp16_skip_op_types": ("Gemm",)}, {"precision": "fp8"}, "it counts with precision fp16 or fp8 or fp8_weight only"),
        ({"enable_avoid_overflow_patterns": True}, {"precision": "fp16"}, "precision fp16 or"),
        ({"disable_fast_norm": True}, {"precision": "fp16"}, "precision fp16 or"),
        ({"fp8_params": "F152,F152,0,0"}, {"precision": "fp8"}, "it counts with precision fp8 or fp8_weight only"),
        ({"fp8_skip_op_names": ("a",)}, {"precision": "fp8_weight"}, "precision fp8 or"),
        ({"num_of_layers_keep_fp16": 1}, {"precision": "fp8"}, "precision fp8 or"),
        ({"calibration_loss_type": "mse"}, {"precision": "fp8"}, "precision fp8 or"),
        ({"remap_mode": ("before_add",)}, {"enable_insert_remap": True}, "it counts with enable_insert_remap True only"),
    ],
)
def test_option_without_effect_on_any_model_warns_once(given, with_it, warning, caplog) -> None:
    idle, effective = ConversionOptions(**given), ConversionOptions(**given, **with_it)
    warn_of_no_effect([ConversionOptions(), effective, idle])
    assert not caplog.records
    warn_of_no_effect([idle, idle, ConversionOptions(**with_it)])
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{next(iter(given))} has no effect: ")
    assert warning in record.getMessage()


@pytest.mark.parametrize("precision", ["fp32", "fp16", "fp8", "fp8_weight"])
def test_every_step_of_the_recipe_gets_its_settings(precision: str, tmp_path: Path) -> None:
    (tmp_path / "cut.yaml").write_text("- {node: a, device: 0, stage: 0}\n")
    options = ConversionOptions(
        input_shape={"x": (1,)}, batch_size=1, batch_axis=0, infer_shape_ahead=True, precision=precision, enable_erf_gelu=True,
        enable_compress_pattern=True, merge_if_with_same_cond=True,
        merge_matmul=("a", "b"), merge_matmul_add=("a", "b", "c", "d"), merge_moe=("a", "b", "c", "d"), fold_periodic_initializer=True,
        serialize_matmul={"a": "4"}, serialize_matmul_add={"a/b": "4"}, enable_insert_remap=True, eightbitsio=True,
        apply_hcsr=("fp32,[1,2],3",), num_io_tiles=32, manual_sharding_config=str(tmp_path / "cut.yaml"), checkpoints=("a",),
        remove_outputs=("b",),
    )  # fmt: skip
    steps = [*shape_steps(options), *conversion_steps(options, tmp_path), *finish_steps()]
    assert {get_pass(step.name, **step.settings).name for step in steps} == {step.name for step in steps}


def test_model_with_external_weights_is_read_completely(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], [tensor("x", [4])], [tensor("y", [4])], {"w": np.ones(4, np.float32)})
    model.ir_version = 14
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    read = read_onnx(tmp_path / "m.onnx")
    assert read.ir_version == 10
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(read.graph.initializer[0]), np.ones(4, np.float32))
    (tmp_path / "m.data").unlink()
    with pytest.raises(CompileError, match=r"m\.data"):
        read_onnx(tmp_path / "m.onnx")


def test_unreadable_model_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="is a folder; a SavedModel needs --framework tensorflow"):
        read_onnx(tmp_path)
    with pytest.raises(CompileError, match="there is no"):
        read_tensorflow(tmp_path / "none", TensorflowOptions())
    with pytest.raises(CompileError, match="does not say which opset"):
        Converter().convert(onnx.ModelProto(ir_version=8))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "g (float[2,3] x) => (int64[2,n] y) { y = NonZero(x) }",
            r"\(NonZero, making .*\) gives a shape that is not known: it depends on values",
        ),
        (
            "g (float[2,3] x) => (float[a,b] y) { y = own.F(x) }",
            r"\(own::F, making 'y'\) .*: operators of domain 'own' are not known; custom_shape",
        ),
        ("g (float[2,3] x) => (float[2,3] y, float[a,b] z) { y = Relu(x) z = own.F(y) }", "operators of domain 'own' are not known"),
    ],
)
def test_output_of_unknown_shape_is_refused_with_its_operator_and_the_reason(text: str, reason: str) -> None:
    model = parse(text, opset=17)
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    with pytest.raises(NotStaticError, match=reason):
        Converter().convert(model)


def test_function_is_refused_by_the_operator_in_it() -> None:
    body = onnx.helper.make_function(
        "own", "F", ["a"], ["b"], [onnx.helper.make_node("NonZero", ["a"], ["b"])], [onnx.helper.make_opsetid("", 17)]
    )
    model = parse("g (float[2,3] x) => (int64[2,n] y) { y = own.F(x) }", opset=17)
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    model.functions.append(body)
    with pytest.raises(NotStaticError, match=r"\(NonZero, making"):
        Converter().convert(model)


def test_output_without_a_declared_shape_is_raised_to_the_internal_opset() -> None:
    model = parse("g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }", opset=11)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    converted = Converter().convert(model)
    assert [size.dim_value for size in converted.graph.output[0].type.tensor_type.shape.dim] == [2, 3]
