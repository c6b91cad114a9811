"""PopRT's Python API as its users' scripts call it."""

import datetime
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import poprt
import pytest
from onnx import TensorProto, helper
from poprt import runtime
from poprt.backend import get_session
from poprt.backends import Backend, ORTBackend
from poprt.compiler import Compiler, CompilerOptions, Executable
from poprt.converter import Converter, MFConverter, Sharder
from poprt.frontend import OnnxFrontend, TensorflowFrontend
from poprt.optimizer import Optimizer
from poprt.passes import Pass, PassManager, get_all_pass_names, get_pass, layer_precision_compare, register
from poprt.profile import get_model_flops
from poprt.quantizer import FP8Quantizer, quantize

from stoker.compiler.passes import registry
from tests.fakes.graphs import run_onnx
from tests.fakes.transformers import padded, sequence, small_bert

WEIGHT = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def a_model(name: str = "test", rows: int = 2) -> onnx.ModelProto:
    """z = x w + a, at the opset of PopRT's days."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product"), helper.make_node("Add", ["y", "a"], ["z"], name="sum")],
        name,
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, (rows, 4)),
            helper.make_tensor_value_info("a", TensorProto.FLOAT, (rows, 3)),
        ],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, (rows, 3))],
        [helper.make_tensor("w", TensorProto.FLOAT, (4, 3), WEIGHT.tobytes(), raw=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)])


FEEDS: dict[str, np.ndarray] = {"x": np.arange(8, dtype=np.float32).reshape(2, 4) / 8, "a": np.ones((2, 3), np.float32)}
EXPECTED = FEEDS["x"] @ WEIGHT + 1


@pytest.fixture
def own_registrations() -> Iterator[None]:
    """Ends the registrations of custom passes with the test."""
    with registry.temporary_registrations():
        yield


def test_script_converts_compiles_and_runs():
    converted = Converter(convert_version=11, precision="fp16").convert(a_model())
    converted = Pass.get_pass("int64_to_int32")(converted)
    options = CompilerOptions()
    options.ipu_version = runtime.DeviceManager().ipu_hardware_version()
    options.partials_type = "half"
    executable = Compiler.compile(converted.SerializeToString(), [each.name for each in converted.graph.output], options)
    config = runtime.RuntimeConfig()
    config.timeout_ns = datetime.timedelta(microseconds=0)
    with runtime.ModelRunner(executable, config) as runner:
        inputs = {each.name: FEEDS[each.name].astype(each.numpy_data_type()) for each in runner.get_execute_inputs()}
        outputs = {each.name: np.zeros(each.shape, each.numpy_data_type()) for each in runner.get_model_outputs()}
        runner.executeAsync(inputs, outputs).wait()
    assert outputs["z"].dtype == np.float16
    np.testing.assert_allclose(outputs["z"], EXPECTED, atol=4e-3)


def test_executable_is_written_and_read_again(tmp_path):
    path = tmp_path / "executable.popef"
    options = CompilerOptions(opaque_blobs={"note": "text"})
    Compiler.compile_and_export(a_model(), ["z"], path, options)
    executable = Executable(str(path))
    executable.append_opaque_blobs({"more": b"bytes"})
    assert executable.model.opaques["note"] == b"text"
    assert executable.model.opaques["more"] == b"bytes"


def test_model_that_exceeds_the_memory_is_a_runtime_error_with_the_vendors_form():
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (60000, 8000))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (60000, 4))],
        [helper.make_tensor("w", TensorProto.FLOAT, (8000, 4), np.zeros((8000, 4), np.float32).tobytes(), raw=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    with pytest.raises(RuntimeError, match=r"Out of memory on tile \d+: \d+ bytes"):
        Compiler.compile(model, ["y"])


def test_bytes_that_are_not_a_model_are_a_runtime_error():
    with pytest.raises(RuntimeError, match="these 4 bytes are no ONNX model"):
        Compiler.compile(b"junk")


def test_compiler_options_are_set_one_by_one_and_unknown_ones_refused():
    options = CompilerOptions.from_dict({"num_io_tiles": 32})
    options.batches_per_step = 4
    assert (options.num_io_tiles, options.batches_per_step, options.available_memory_proportion) == (32, 4, 0.6)
    with pytest.raises(AttributeError, match="num_iotiles"):
        options.num_iotiles = 3


def test_executable_without_a_version_is_for_the_existing_devices():
    device = runtime.DeviceManager().get_specific_device(0)
    with device, runtime.ModelRunner(Compiler.compile(a_model()), device=device) as runner:
        np.testing.assert_allclose(runner.execute(FEEDS)["z"], EXPECTED, rtol=1e-6)


def test_summary_report_names_the_operators():
    text = Compiler.compile_and_get_summary_report(a_model(), ["z"])
    assert '"product"' in text


def test_sessions_of_both_kinds_compute_the_same():
    device = get_session(a_model().SerializeToString(), 1, "poprt", options={"partials_type": "float"}).load()
    host = get_session(a_model(), 1, "onnxruntime").load()
    assert device.get_io_info() == host.get_io_info()
    assert device.get_io_info()[0]["x"] == ([2, 4], np.float32)
    np.testing.assert_allclose(device.run(["z"], FEEDS)[0], host.run(["z"], FEEDS)[0], rtol=1e-6)
    assert isinstance(device, Backend)
    device.close()
    with pytest.raises(ValueError, match="tensorrt"):
        get_session(a_model(), 1, "tensorrt")


def test_backend_exports_and_aligns_dtypes(tmp_path):
    half = Converter(precision="fp16").convert(a_model())
    backend = Backend(half, export_popef=True, align_output_dtype=True, output_dir=tmp_path)
    (result,) = backend.run(None, {name: value.astype(np.float16) for name, value in FEEDS.items()})
    assert result.dtype == np.float32
    assert backend.get_io_info()[1]["z"] == ([2, 3], np.float32)
    assert (tmp_path / "executable.popef").is_file()
    backend.close()


def test_backend_replaces_an_inference_session():
    session = ORTBackend(a_model().SerializeToString(), None, ["CPUExecutionProvider"], lazy_load=True)
    np.testing.assert_allclose(session.run(["z"], FEEDS)[0], EXPECTED, rtol=1e-6)


def test_weights_of_a_running_model_are_changed():
    options = CompilerOptions()
    options.constant_weights = False
    executable = Compiler.compile(a_model(), ["z"], options)
    config = runtime.LightRunnerConfig()
    config.replica_to_device = runtime.ReplicaIdToDevice()
    with (
        runtime.DeviceManager().get_device(executable.metadata) as device,
        runtime.LightRunner(executable, config, device=device) as runner,
    ):
        weights = [each for each in runner.get_model_inputs() if each.popef_contains_tensor_data]
        outputs = {"z": np.zeros((2, 3), np.float32)}
        runner.execute_async(FEEDS, outputs).wait()
        np.testing.assert_allclose(outputs["z"], EXPECTED, rtol=1e-6)
        runner.set_input_anchor(weights[0].name, np.zeros(weights[0].shape, weights[0].numpy_data_type()))
        runner.update_weights()
        runner.execute_async(FEEDS, outputs).wait()
        np.testing.assert_array_equal(outputs["z"], FEEDS["a"])


def test_runner_is_chosen_by_its_configuration():
    with runtime.Runner(Compiler.compile(a_model())) as runner:
        assert isinstance(runner.runner, runtime.ModelRunner)
        np.testing.assert_allclose(runner.execute(FEEDS)["z"], EXPECTED, rtol=1e-6)
    fused = Compiler.compile([a_model(), a_model(rows=1)])
    config = runtime.RuntimeConfig(validate_io_params=False)
    with runtime.Runner(fused, config) as runner:
        outputs = runner.execute({f"graph0/{name}": value for name, value in FEEDS.items()}, {"graph0/z": np.zeros((2, 3), np.float32)})
    np.testing.assert_allclose(outputs["graph0/z"], EXPECTED, rtol=1e-6)


def test_packed_requests_of_one_sequence_each_get_their_results(tmp_path):
    model = small_bert(2, 8)
    converted = Converter(pack_args={"max_valid_num": 5}).convert(model)
    session = get_session(converted, 1, "poprt", output_dir=tmp_path, export_popef=True).load()
    assert isinstance(session, Backend)
    session.close()
    config = runtime.PackRunnerConfig(timeout_microseconds=100, max_valid_num=5, dynamic_input_name="input_ids")
    config.algorithm = runtime.PackAlgorithm.first_fit
    requests = [sequence(length, length) for length in (3, 5, 2)]
    with runtime.Runner(str(tmp_path / "executable.popef"), config) as runner:
        futures = [runner.execute_async(request) for request in requests]
        for request, future in zip(requests, futures, strict=True):
            expected = run_onnx(model, padded(request, 2, 8))["pooled"][0]
            np.testing.assert_allclose(future.result(20)["pooled"], expected, rtol=1e-4, atol=1e-5)


def test_device_wait_is_configured_with_the_vendors_names():
    configure: Any = runtime.DeviceWaitConfig
    wait = configure(runtime.DeviceWaitStrategy.WAIT_WITH_TIMEOUT, timeout=datetime.timedelta(seconds=2), sleepTime=1)
    assert (wait.timeout_s, wait.sleep_s) == (2.0, 1.0)


def test_two_models_are_fused():
    models = MFConverter([{"precision": "fp32"}, {"precision": "fp32"}]).convert([a_model(), a_model(rows=1)])
    config = runtime.RuntimeConfig()
    config.validate_io_params = False
    with runtime.ModelRunner(Compiler.compile(models), config) as runner:
        inputs = {"index": np.array([0], np.uint8), "graph0/stream0": FEEDS["x"], "graph0/stream1": FEEDS["a"]}
        outputs = {"graph0/z": np.zeros((2, 3), np.float32)}
        runner.execute(inputs, outputs)
    np.testing.assert_allclose(outputs["graph0/z"], EXPECTED, rtol=1e-6)


def test_sharder_marks_devices_and_stages():
    sharded = Sharder(sharding_info={"product": 0}, pipelining_info={"product": 0}).run(a_model())
    marks = [{each.key: each.value for each in node.metadata_props} for node in sharded.graph.node]
    assert [mark["__ipu_number"] for mark in marks] == ["0", "1"]
    assert [mark["__pipeline_stage"] for mark in marks] == ["0", "1"]


def test_quantization_in_two_steps_writes_fp8_and_a_log(tmp_path):
    samples = tmp_path / "samples.pickle"
    samples.write_bytes(pickle.dumps({name: value[np.newaxis] for name, value in FEEDS.items()}))
    converted = Converter(precision="fp8", quantize=True).convert(a_model())
    assert "FLOAT8" not in onnx.printer.to_text(converted).upper()
    given = {"output_dir": tmp_path, "quantize_loss_type": "mse"}
    result = quantize(onnx_model=converted, input_model=None, data_preprocess=str(samples), precision="fp8", **given)
    assert "FLOAT8" in onnx.printer.to_text(result).upper()
    assert "product" in (tmp_path / "quantize.log").read_text()
    assert FP8Quantizer(precision="fp8_weight", **given).quantize(converted).graph.node
    with pytest.raises(ValueError, match="int8"):
        quantize(converted, precision="int8")


def test_layers_are_compared_into_a_log(tmp_path):
    source = tmp_path / "source.onnx"
    onnx.save(a_model(), source)
    converted = Converter(precision="fp16").convert(OnnxFrontend(source).load_model())
    layer_precision_compare(origin_model_path=source, converted_model=converted, output_dir=tmp_path)
    assert "product" in (tmp_path / "precision_compare.log").read_text()


def test_unknown_tensorflow_option_is_refused():
    assert TensorflowFrontend("model", saved_model=True, opset=11).options.opset == 11
    with pytest.raises(TypeError, match="signature"):
        TensorflowFrontend("model", signature="x")


def test_flops_count_products():
    assert get_model_flops(a_model(), False) >= 2 * 2 * 4 * 3


@pytest.mark.usefixtures("own_registrations")
def test_custom_passes_see_protos():

    @register("replace_add_with_sub")
    class ReplaceAddWithSub(Pass):
        def change(self, graph: onnx.GraphProto, is_main_graph: bool) -> onnx.GraphProto:
            assert is_main_graph
            for node in graph.node:
                if node.op_type == "Add":
                    node.op_type = "Sub"
            return graph

        def run(self, onnx_model: onnx.ModelProto) -> onnx.ModelProto:  # type: ignore[override] # as in PopRT
            self.logger.debug("changing")
            onnx_model.graph.CopyFrom(self.traverse_graph(onnx_model.graph, self.change))
            return onnx_model

    assert "replace_add_with_sub" in get_all_pass_names()
    for changed in (
        get_pass("replace_add_with_sub").run(a_model()),
        ReplaceAddWithSub()(a_model()),
        PassManager(["replace_add_with_sub"]).run(a_model()),
        Optimizer(["replace_add_with_sub"]).run(a_model()),
        Converter(passes=["replace_add_with_sub"]).convert(a_model()),
    ):
        assert [node.op_type for node in changed.graph.node] == ["MatMul", "Sub"]


def test_sub_graphs_are_traversed_before_the_graph_that_holds_them():
    def branch(name: str) -> onnx.GraphProto:
        node = helper.make_node("Neg", ["x"], [name])
        return helper.make_graph([node], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1,))])

    graph = helper.make_graph([helper.make_node("If", ["c"], ["y"], then_branch=branch("t"), else_branch=branch("e"))], "main", [], [])
    seen: list[tuple[str, bool]] = []

    class Look(Pass):
        def run(self, onnx_model: onnx.ModelProto) -> onnx.ModelProto:  # type: ignore[override] # as in PopRT
            def note(graph: onnx.GraphProto, is_main_graph: bool) -> onnx.GraphProto:
                seen.append((graph.name, is_main_graph))
                return graph

            self.traverse_graph(onnx_model.graph, note)
            return onnx_model

    Look().run(helper.make_model(graph))
    assert sorted(seen[:2]) == [("e", False), ("t", False)]
    assert seen[2] == ("main", True)


def test_names_are_found_on_the_package():
    assert poprt.Converter is Converter
    assert poprt.runtime is runtime
    assert poprt.__version__
    with pytest.raises(AttributeError, match="Perf"):
        _ = poprt.Perf


def test_command_is_the_compilers_with_the_ipu_target(capsys):
    from poprt import cli

    assert cli.main(["--list_all_passes"]) == 0
    assert "float_to_half" in capsys.readouterr().out
    assert cli.main(["--no_such_argument"]) == 2
    assert "poprt: error" in capsys.readouterr().err


@pytest.mark.usefixtures("own_registrations")
def test_custom_pass_file_of_poprt_is_accepted_by_the_command(tmp_path):
    from poprt import cli

    source, passes = tmp_path / "source.onnx", tmp_path / "passes.py"
    onnx.save(a_model(), source)
    passes.write_text(
        "from poprt.passes import Pass, register\n\n\n"
        "@register('add_becomes_sub')\n"
        "class AddBecomesSub(Pass):\n"
        "    def run(self, onnx_model):\n"
        "        for node in onnx_model.graph.node:\n"
        "            node.op_type = {'Add': 'Sub'}.get(node.op_type, node.op_type)\n"
        "        return onnx_model\n"
    )
    words = ["--input_model", str(source), "--custom_pass_config", str(passes), "--passes", "add_becomes_sub"]
    assert cli.main([*words, "--output_dir", str(tmp_path), "--output_model", "made.onnx", "--disable_compilation_progress_bar"]) == 0
    assert [node.op_type for node in onnx.load(tmp_path / "made.onnx").graph.node] == ["MatMul", "Sub"]


@pytest.mark.slow
def test_running_executables_needs_no_compiler():
    code = "import sys, poprt.runtime; print(sorted({'stoker.compiler', 'onnx', 'onnx_ir', 'yaml'} & set(sys.modules)))"
    compat = Path(poprt.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(compat), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("shape", [{"x": [2, 4], "a": (2, 3)}, ["x=2,4", "a=2,3"]])
def test_shapes_are_given_by_name(shape):
    model = a_model()
    for each in model.graph.input:
        each.type.tensor_type.shape.dim[0].dim_param = "n"
    converted = Converter(input_shape=shape).convert(model)
    assert [each.type.tensor_type.shape.dim[0].dim_value for each in converted.graph.input] == [2, 2]
