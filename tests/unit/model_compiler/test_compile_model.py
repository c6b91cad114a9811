"""`compile_model`: from a request to files in a repository, with targets that compile nothing."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from model_compiler import compile_model

from stoker.compiler.errors import CompileError
from stoker.server.config.pbtxt import parse_pbtxt
from tests.fakes.compile_requests import Devices, image_model
from tests.fakes.graphs import parse


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def written(result: dict[str, str]) -> Path:
    assert result["status"] == "success", result
    assert set(result) == {"status", "path"}
    return Path(result["path"])


def test_model_is_compiled_into_adliks_tree(devices: Devices, request_of: Any, tmp_path: Path) -> None:
    path = written(compile_model(request_of(input_formats=["channels_first"])))
    assert path == tmp_path / "models" / "net_1.zip"
    assert files(tmp_path / "models") == ["net/1/model.exec", "net/config.pbtxt", "net_1.zip"]
    text = (tmp_path / "models/net/config.pbtxt").read_text()
    version = text.split('platform_version: "')[1].split('"')[0]
    assert text == (
        f'name: "net"\nplatform: "topsinference"\nplatform_version: "{version}"\nmax_batch_size: 8\n'
        'input [\n  { name: "image" data_type: DT_FLOAT format: FORMAT_NCHW dims: [3, 4, 4] }\n]\n'
        'output [\n  { name: "y" data_type: DT_FLOAT dims: [2] }\n]\n'
    )
    assert parse_pbtxt(text, source="config.pbtxt", model_name="net").is_adlik


def test_zip_file_contains_the_version_and_the_config_reproducibly(devices: Devices, request_of: Any, tmp_path: Path) -> None:
    packed = [written(compile_model(request_of(export_path=str(tmp_path / name)))) for name in ("one", "two")]
    with zipfile.ZipFile(packed[0]) as archive:
        assert archive.namelist() == ["1/model.exec", "config.pbtxt"]
        assert archive.read("1/model.exec") == (tmp_path / "one/net/1/model.exec").read_bytes()
        assert archive.read("config.pbtxt") == (tmp_path / "one/net/config.pbtxt").read_bytes()
    assert packed[0].read_bytes() == packed[1].read_bytes()


def test_versions_are_numbered_on_and_never_overwritten(devices: Devices, request_of: Any, failure: Any, tmp_path: Path) -> None:
    names = [written(compile_model(request_of(version=version))).name for version in (None, None, 7, None)]
    assert names == ["net_1.zip", "net_2.zip", "net_7.zip", "net_8.zip"]
    devices.gcu.sources = ()
    assert "version 7: " in failure(version=7)
    assert devices.gcu.sources == ()  # said before anything was compiled
    assert len(files(tmp_path / "models")) == 9


def test_batch_sizes_default_to_powers_of_two_and_the_largest(devices: Devices, request_of: Any) -> None:
    compile_model(request_of())
    assert devices.batches == [1, 2, 4, 8]
    compile_model(request_of(model_name="odd", max_batch_size=5))
    assert devices.batches == [1, 2, 4, 5]
    compile_model(request_of(model_name="one", max_batch_size=1))
    assert devices.batches == [1]
    compile_model(request_of(batch_sizes=[2, 4, 8]))
    assert devices.batches == [2, 4, 8]


def test_shapes_fix_the_batch_or_leave_it_open(devices: Devices, request_of: Any, tmp_path: Path) -> None:
    onnx.save(image_model(height="h"), tmp_path / "free.onnx")
    free = str(tmp_path / "free.onnx")
    written(compile_model(request_of(input_model=free, input_shapes=[[4, 3, 5, 4]])))
    assert devices.batches == [4]
    written(compile_model(request_of(input_model=free, model_name="n", input_shapes={"image": [3, 5, 4]})))
    assert devices.batches == [1, 2, 4, 8]
    written(compile_model(request_of(input_model=free, model_name="m", input_shapes=[[4, 3, 5, 4]], batch_sizes=[4])))
    assert "dims: [3, 5, 4]" in (tmp_path / "models/m/config.pbtxt").read_text()


def test_batch_fixed_by_the_model_is_the_engines(devices: Devices, request_of: Any, failure: Any) -> None:
    fixed = image_model(batch=2)
    written(compile_model(request_of(input_model=fixed)))
    assert devices.batches == [2]
    assert "batch_sizes 1, 8: the model has the batch fixed to 2" in failure(input_model=fixed, batch_sizes=[1, 8])
    assert "max_batch_size 1: the engine's batch is fixed to 2" in failure(input_model=fixed, max_batch_size=1)
    assert "input_shapes: input 'image' dimension 0 is 2 in the model and cannot be 4" in failure(
        input_model=fixed, input_shapes=[[4, 3, 4, 4]]
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"input_shapes": [[1, 3], [1]]}, "input_shapes: 2 shapes for 1 inputs: 'image'"),
        ({"input_shapes": {"picture": [1]}}, "input_shapes: the model has no input 'picture'; its inputs: 'image'"),
        (
            {"input_shapes": [[3, 4]]},
            "input 'image' has 4 dimensions; expected that many sizes, or one fewer (without the batch), got [3, 4]",
        ),
        ({"input_shapes": [[3, 5, 4]]}, "input 'image' dimension 2 is 4 in the model and cannot be 5"),
        ({"input_formats": ["channels_first", None]}, "input_formats: 2 formats for 1 inputs: 'image'; write null for what is no image"),
        ({"compile_options": {"resouce_mode": "1c"}}, "the GCU's compiler has no resouce_mode; did you mean resource_mode?"),
        ({"resource_mode": "1c", "compile_options": {"resource_mode": "2c"}}, "resource_mode is 1c by its own argument and 2c"),
        ({"serving_type": "tensorrt"}, "serving_type 'tensorrt': there is no such target; targets: engine (GCU engine"),
        ({"input_model": "gone.onnx"}, "input_model: there is no gone.onnx"),
        (
            {"serving_type": "popef", "batch_sizes": [1], "resource_mode": "1c"},
            "batch_sizes and resource_mode: serving_type popef has none",
        ),
        ({"serving_type": "popef", "compile_options": {"build_flag": "fp16"}}, "compile_options build_flag: serving_type popef has none"),
        ({"serving_type": "popef", "build_flag": "KFP16_MIX"}, "build_flag mixed: the IPU computes in fp32 or fp16"),
        ({"serving_type": "onnx", "build_flag": "KFP16"}, "build_flag: serving_type onnx serves the model as it is"),
        ({"serving_type": "onnx", "enable_fp16": 1}, "enable_fp16: serving_type onnx serves the model as it is"),
        ({"serving_type": "openvino", "build_flag": "KFP16"}, "build_flag: serving_type openvino serves the model as it is"),
        ({"serving_type": "onnx", "batch_sizes": [1]}, "batch_sizes: serving_type onnx serves the model as it is"),
    ],
)
def test_model_that_exceeds_the_memory_is_reported_and_nothing_is_written(
    devices: Devices, failure: Any, tmp_path: Path, fields: dict[str, Any], text: str
) -> None:
    assert text in failure(**fields)
    assert not (tmp_path / "models").exists()


def test_variable_dimensions_are_all_named(devices: Devices, failure: Any) -> None:
    model = parse("g (float[n,h,w] x, float[n,k] z) => (float[n,k] y) { y = Identity(z) }")
    text = failure(input_model=model)
    assert "static shapes only: give input_shapes, which fix input 'x' dimension 1; input 'x' dimension 2; input 'z' dimension 1" in text


def test_inputs_without_a_common_batch_are_refused(devices: Devices, failure: Any) -> None:
    two = parse("g (float[2,3] x, float[4,3] z) => (float[2,3] y) { y = Identity(x) }")
    assert "must be one for all inputs; the model has 2 for input 'x', 4 for input 'z'" in failure(input_model=two)
    scalar = parse("g (float[n,3] x, float s) => (float[n,3] y) { y = Mul(x, s) }")
    assert "input 's' is a scalar" in failure(input_model=scalar)


def test_model_in_memory_compiles_for_every_target(devices: Devices, request_of: Any, tmp_path: Path) -> None:
    model = image_model()
    before = model.SerializeToString()
    for kind in ("engine", "popef", "onnx"):
        written(compile_model(request_of(serving_type=kind, model_name=kind, input_model=model)))
    assert files(tmp_path / "models") == [
        *("engine/1/model.exec", "engine/config.pbtxt", "engine_1.zip"),
        *("onnx/1/model.onnx", "onnx/config.pbtxt", "onnx_1.zip"),
        *("popef/1/executable.popef", "popef/config.pbtxt", "popef_1.zip"),
    ]
    assert model.SerializeToString() == before


def test_ipu_executable_has_the_largest_batch_and_the_targets_config(devices: Devices, request_of: Any, tmp_path: Path) -> None:
    written(compile_model(request_of(serving_type="popef", enable_fp16=True)))
    (source,) = devices.ipu.sources
    value = source.model.graph.input[0].type.tensor_type
    assert [dim.dim_value for dim in value.shape.dim] == [8, 3, 4, 4]
    assert value.elem_type == onnx.TensorProto.FLOAT16
    text = (tmp_path / "models/net/config.pbtxt").read_text()
    assert 'backend: "poplar"\nmax_batch_size: 8' in text
    assert "TYPE_FP32 dims: [3, 4, 4]" in text


def test_build_flag_and_resource_mode_reach_the_compiler(devices: Devices, request_of: Any) -> None:
    written(compile_model(request_of(build_flag="TopsInference.KFP16_MIX", compile_options='{"resource_mode": "2c", "hlir_options": "x"}')))
    options = devices.gcu.options
    assert options is not None
    assert (options.build_flag, options.resource_mode) == ("mixed", "2c")


def test_served_onnx_file_computes_like_the_source(request_of: Any, tmp_path: Path) -> None:
    model = image_model(height="h")
    written(compile_model(request_of(serving_type="onnx", input_model=model, input_formats=["channels_first"])))
    text = (tmp_path / "models/net/config.pbtxt").read_text()
    assert 'platform: "onnx"' in text
    assert "format: FORMAT_NCHW dims: [3, -1, 4]" in text  # a variable dimension, not 0
    images = np.random.default_rng(1).standard_normal((3, 3, 6, 4), dtype=np.float32)
    responses = [
        onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, {"image": images})[0]
        for content in (model.SerializeToString(), (tmp_path / "models/net/1/model.onnx").read_bytes())
    ]
    np.testing.assert_array_equal(*responses)


def test_served_onnx_file_has_the_requested_sizes(request_of: Any, failure: Any, tmp_path: Path) -> None:
    model = parse("g (float[n,h] x) => (float[n,k] y) { y = Relu(x) }")
    written(compile_model(request_of(serving_type="onnx", input_model=model, input_shapes=[[5]])))
    served = onnx.load(tmp_path / "models/net/1/model.onnx")
    assert [dim.dim_value for dim in served.graph.input[0].type.tensor_type.shape.dim] == [0, 5]
    assert (tmp_path / "models/net/config.pbtxt").read_text().count("dims: [5]") == 2
    fixed = parse("g (float[2,5] x) => (float[2,5] y) { y = Relu(x) }")
    assert "max_batch_size 8: the model's batch is fixed to 2; say 2" in failure(serving_type="onnx", input_model=fixed)
    written(compile_model(request_of(serving_type="onnx", model_name="two", input_model=fixed, max_batch_size=2)))


def test_openvino_ir_computes_like_the_source_in_fp32(request_of: Any, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    model = image_model(height="h")
    written(compile_model(request_of(serving_type="openvino", input_model=model, input_formats=["channels_first"])))
    text = (tmp_path / "models/net/config.pbtxt").read_text()
    assert 'platform: "openvino"' in text
    assert '{ key: "precision" value { string_value: "f32" } }' in text
    assert "format: FORMAT_NCHW dims: [3, -1, 4]" in text
    assert files(tmp_path / "models") == ["net/1/model.bin", "net/1/model.xml", "net/config.pbtxt", "net_1.zip"]
    images = np.random.default_rng(1).standard_normal((3, 3, 6, 4), dtype=np.float32)
    wanted = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"image": images})[0]
    served = openvino.Core().compile_model(tmp_path / "models/net/1/model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    np.testing.assert_allclose(served({"image": images})[0], wanted, rtol=1e-5, atol=1e-6)


def test_format_of_an_input_that_is_not_an_image_is_omitted(
    devices: Devices, request_of: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = parse("g (float[n,3,4,4] image, float[n,7] x) => (float[n,7] y) { y = Relu(x) }")
    written(compile_model(request_of(input_model=model, input_formats=["channels_last", "channels_first"])))
    text = (tmp_path / "models/net/config.pbtxt").read_text()
    assert "format: FORMAT_NHWC dims: [3, 4, 4]" in text
    assert '{ name: "x" data_type: DT_FLOAT dims: [7] }' in text
    assert "channels_first has no effect on input 'x', no image: [7]" in caplog.text


def test_outputs_without_a_declared_shape_are_inferred(request_of: Any, tmp_path: Path) -> None:
    model = parse("g (float[n,3,5] x) => (y) { y = Flatten(x) }")
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    written(compile_model(request_of(serving_type="onnx", input_model=model)))
    assert '{ name: "y" data_type: DT_FLOAT dims: [15] }' in (tmp_path / "models/net/config.pbtxt").read_text()


def test_unwritable_zip_file_is_reported_and_the_version_kept(devices: Devices, failure: Any, tmp_path: Path) -> None:
    (tmp_path / "models" / "net_1.zip").mkdir(parents=True)
    text = failure()
    assert "net_1.zip" in text
    assert "version 1 is written and can be served, only its zip file is missing" in text
    assert (tmp_path / "models/net/1/model.exec").is_file()


def test_missing_weights_are_reported(devices: Devices, failure: Any, tmp_path: Path, request_of: Any) -> None:
    path = tmp_path / "outside.onnx"
    onnx.save(image_model(), path, save_as_external_data=True, location="outside.data", size_threshold=0)
    written(compile_model(request_of(input_model=path, export_path=tmp_path / "with_paths")))
    half = onnx.load(path, load_external_data=False)
    assert "outside.data" in failure(input_model=half)
    (tmp_path / "outside.data").unlink()
    assert "outside.data" in failure(input_model=str(path))


def test_contradicting_config_stops_the_new_version(devices: Devices, request_of: Any, failure: Any, tmp_path: Path) -> None:
    written(compile_model(request_of()))
    before = files(tmp_path / "models")
    text = failure(max_batch_size=16)
    assert "max_batch_size is 8, the new version needs 16" in text
    config = tmp_path / "models/net/config.pbtxt"
    config.write_text(config.read_text().replace("topsinference", "openvino"))
    assert "platform is openvino, the new version needs topsinference" in failure()
    assert files(tmp_path / "models") == before


def test_config_in_the_other_form_is_accepted(devices: Devices, request_of: Any, tmp_path: Path) -> None:
    written(compile_model(request_of()))
    config = tmp_path / "models/net/config.pbtxt"
    text = config.read_text().replace("platform:", "backend:").replace("DT_FLOAT", "TYPE_FP32")
    config.write_text("".join(line for line in text.splitlines(keepends=True) if "platform_version" not in line))
    before = config.read_text()
    assert written(compile_model(request_of())).name == "net_2.zip"
    assert config.read_text() == before


def test_refusal_of_the_target_is_the_failures_text(devices: Devices, failure: Any, tmp_path: Path) -> None:
    devices.gcu.rejection = CompileError("HBM: 17 GiB needed, the i20 has 16")
    assert failure() == "HBM: 17 GiB needed, the i20 has 16"
    assert not (tmp_path / "models").exists()


def test_internal_error_is_a_failure_too(devices: Devices, request_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(devices.gcu, "export", broken)
    assert compile_model(request_of()) == {"status": "failure", "error_msg": "internal error: RuntimeError: unforeseen"}


def test_source_type_is_detected_by_name(devices: Devices, failure: Any, model_path: Path, tmp_path: Path, request_of: Any) -> None:
    other = tmp_path / "net.bin"
    other.write_bytes(model_path.read_bytes())
    assert "does not identify a format" in failure(input_model=str(other))
    assert "ONNX file (.onnx)" in failure(input_model=str(other))
    written(compile_model(request_of(input_model=str(other), framework="onnx")))
    (tmp_path / "folder").mkdir()
    assert "is a folder without a saved_model.pb" in failure(input_model=str(tmp_path / "folder"))
    (tmp_path / "graph.pb").write_bytes(b"")
    assert "input_names and output_names missing" in failure(input_model=str(tmp_path / "graph.pb"))
    other.write_bytes(b"\xff\xff no model")
    assert "is no ONNX file" in failure(input_model=str(other), framework="onnx")


def test_tensorflow_models_are_converted_by_tf2onnx_with_the_requests_fields(
    devices: Devices, request_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def read(path: Path, options: Any) -> onnx.ModelProto:
        asked.append((path.name, options))
        return image_model()

    monkeypatch.setattr("model_compiler.importing.read_tensorflow", read)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(b"")
    (tmp_path / "graph.pb").write_bytes(b"")
    written(compile_model(request_of(input_model=str(tmp_path / "saved"), signature_keys="serve", saved_model_tags=["a", "b"])))
    frozen = {"input_names": ["x:0"], "output_names": "y:0", "opset_version": 13}
    written(compile_model(request_of(input_model=str(tmp_path / "graph.pb"), **frozen)))
    (name, saved), (_, graph) = asked
    assert (name, saved.saved_model, saved.signature_def, saved.tag, saved.opset) == ("saved", True, "serve", "a,b", 18)
    assert (graph.saved_model, graph.inputs, graph.outputs, graph.opset) == (False, "x:0", "y:0", 13)


def test_results_are_plain_json(devices: Devices, request_of: Any) -> None:
    result = compile_model(request_of())
    assert json.loads(json.dumps(result)) == result
