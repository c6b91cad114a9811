"""The backend on real models; `tests/conformance` runs the common checks."""

import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from stoker.backends.api.backend import Instance, LoadRequest
from stoker.backends.api.batch import BatchItem, BatchProcessor
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.errors import InvalidRequest, ModelLoadError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelSignature
from stoker.backends.api.output_memory import Layout
from stoker.backends.api.tensor import DataType
from stoker.backends.openvino.backend import OpenVinoBackend
from stoker.backends.openvino.parameters import ModelParameters
from stoker.backends.testing.samples import signature, version_files
from tests.fakes import onnx_models
from tests.fakes.outcomes import all_outputs, outputs_of

ov = pytest.importorskip("openvino", reason="the 'openvino' extra is not installed")

from stoker.backends.openvino.loading import Loader  # noqa: E402 - it imports OpenVINO

Load = Callable[..., Instance]

SUMS = signature(dict.fromkeys(("a", "b"), (DataType.FP32, (2,))), dict.fromkeys(("sum", "difference"), (DataType.FP32, (2,))), 8)


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    backend = OpenVinoBackend()
    with ExitStack() as loaded:

        def make(proto: onnx.ModelProto, served: ModelSignature, **parameters: str) -> Instance:
            instance = backend.load(request(tmp_path, proto, served, **parameters))
            loaded.callback(instance.close)
            return instance

        yield make


def request(folder: Path, proto: onnx.ModelProto, served: ModelSignature, **parameters: str) -> LoadRequest:
    files = onnx_models.onnx_files(folder, proto)
    return LoadRequest(model_name="m", version=1, files=files, model_filename="model.onnx", signature=served, parameters=parameters)


def convolution(channels: int = 32) -> onnx.ModelProto:
    """A convolution whose sums are long enough to show bfloat16's rounding; input and output are large enough to be handed over."""
    weights = np.random.default_rng(1).standard_normal((channels, 3, 3, 3)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    shape = onnx_models.value("x", ("n", 3, 96, 96)), onnx_models.value("y", ("n", channels, 96, 96))
    return onnx_models.model([node], [shape[0]], [shape[1]], [onnx.numpy_helper.from_array(weights, "w")])


CONVOLVED = signature({"x": (DataType.FP32, (3, 96, 96))}, {"y": (DataType.FP32, (32, 96, 96))}, 4)


def expansion() -> onnx.ModelProto:
    """A small input and a large output."""
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    shape = onnx_models.value("x", ("n", 1)), onnx_models.value("y", ("n", 262144))
    return onnx_models.model([node], [shape[0]], [shape[1]], [onnx.numpy_helper.from_array(np.ones((1, 262144), np.float32), "w")])


EXPANDED = signature({"x": (DataType.FP32, (1,))}, {"y": (DataType.FP32, (262144,))}, 4)


def ir_files(folder: Path, proto: onnx.ModelProto) -> ModelFiles:
    """`proto` as OpenVINO IR in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    ov.save_model(ov.Core().read_model(proto.SerializeToString()), str(folder / "model.xml"), compress_to_fp16=False)
    return ModelFiles(folder, {path.name: path.stat().st_size for path in folder.iterdir()})


@pytest.mark.slow
@pytest.mark.parametrize("buckets", [{}, {"batch_buckets": "8"}, {"batch_buckets": "dynamic"}, {"batch_buckets": "1,3,8"}])
@pytest.mark.parametrize("rows", [1, 3, 5, 8])
def test_batch_of_any_size_is_computed_row_by_row(load: Load, buckets: dict[str, str], rows: int) -> None:
    a = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    found = load(onnx_models.sum_and_difference(), SUMS, **buckets).execute({"a": a, "b": 2 * a}, ["difference", "sum"])
    assert found["sum"].tolist() == (3 * a).tolist()
    assert found["difference"].tolist() == (-a).tolist()


@pytest.mark.parametrize("is_closed", [False, True])
def test_batches_of_small_tensors_run_in_the_tensors_of_an_infer_request(load: Load, is_closed: bool) -> None:
    instance = load(onnx_models.sum_and_difference(), SUMS, batch_buckets="3,8")
    processor = BatchProcessor(instance, SUMS, SystemClock())
    kept: list[tuple[dict[str, np.ndarray], np.ndarray]] = []
    for seed, sizes in enumerate(((1, 2), (8,), (2, 3), (1,), (3,))):
        arrays = [np.random.default_rng(seed).random((2, rows, 2), np.float32) for rows in sizes]
        items = [BatchItem({"a": a, "b": b}, len(a), ("difference", "sum")) for a, b in arrays]
        kept += zip(all_outputs(processor.process(items).outcomes), arrays, strict=True)
    for found, (a, b) in kept:
        np.testing.assert_array_equal(found["sum"], a + b)
        np.testing.assert_array_equal(found["difference"], a - b)
    bound = [instance.bound(rows) for rows in (1, 3, 4, 8)]
    assert None not in bound
    assert (bound[0] is bound[1], bound[1] is bound[2], bound[2] is bound[3]) == (True, False, True)
    if is_closed:
        instance.close()
        [outcome] = processor.process([BatchItem({"a": a, "b": a}, len(a), ("sum",))]).outcomes
        assert "the model is closed" in str(outcome)


@pytest.mark.parametrize(
    ("proto", "served", "parameters"),
    [
        (onnx_models.sum_and_difference(), SUMS, {"pipeline_depth": "2"}),
        (onnx_models.sum_and_difference(), SUMS, {"batch_buckets": "dynamic"}),
        (onnx_models.identity(DataType.INT64), signature({"x": (DataType.INT64, (2,))}, {"y": (DataType.INT64, (2,))}, 8), {}),
        (convolution(), CONVOLVED, {}),
        (expansion(), EXPANDED, {}),
    ],
    ids=["several requests", "open batch", "range", "large", "large output"],
)
def test_model_without_small_tensors_of_its_own_has_no_bound_ones(
    load: Load, proto: onnx.ModelProto, served: ModelSignature, parameters: dict[str, str]
) -> None:
    assert load(proto, served, **parameters).bound(1) is None


def test_large_tensors_are_computed_with_and_without_padding(load: Load) -> None:
    proto = convolution()
    instance = load(proto, CONVOLVED, batch_buckets="2,4")
    core = ov.Core()
    reference = core.compile_model(core.read_model(proto.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    kept = []
    for seed, rows in enumerate((2, 1, 4, 3, 2)):
        x = np.random.default_rng(seed).standard_normal((rows, 3, 96, 96)).astype(np.float32)
        x.setflags(write=False)  # as arrays are that view a request's bytes
        kept.append((outputs_of(instance.execute({"x": x}, ["y"]))["y"], reference(x)[0]))
    for found, expected in kept:
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def identities() -> onnx.ModelProto:
    """Outputs that are the input `x` itself, or the same by a node that OpenVINO may remove, beside outputs computed from it."""
    shape = ("n", *LARGE)
    nodes = [
        helper.make_node("Identity", ["x"], ["identity"]),
        helper.make_node("Cast", ["x"], ["cast"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Transpose", ["x"], ["transpose"], perm=[0, 1, 2]),
        helper.make_node("Add", ["x", "zero"], ["add"]),
        helper.make_node("Concat", ["x"], ["concat"], axis=0),
        helper.make_node("Unsqueeze", ["x", "axis"], ["wide"]),
        helper.make_node("Squeeze", ["wide", "axis"], ["squeeze"]),
        helper.make_node("Neg", ["x"], ["negative"]),
        helper.make_node("Neg", ["squeeze"], ["negative_too"]),
    ]
    made = [onnx.numpy_helper.from_array(np.array(0, np.float32), "zero"), onnx.numpy_helper.from_array(np.array([1], np.int64), "axis")]
    return onnx_models.model(nodes, [onnx_models.value("x", shape)], [onnx_models.value(name, shape) for name in OUTPUTS], made)


LARGE = (512, 512)
SAME = ("x", "identity", "cast", "transpose", "add", "concat", "squeeze")
OUTPUTS = (*SAME, "negative", "negative_too")


@pytest.mark.parametrize("wanted", [OUTPUTS, ("negative",), ("x", "negative_too"), ("squeeze", "x")])
def test_large_outputs_that_are_inputs_are_copied(load: Load, wanted: tuple[str, ...]) -> None:
    served = signature({"x": (DataType.FP32, LARGE)}, dict.fromkeys(OUTPUTS, (DataType.FP32, LARGE)), 2)
    instance = load(identities(), served)
    kept = []
    for seed, rows in enumerate((2, 1, 2, 2)):
        x = np.random.default_rng(seed).standard_normal((rows, *LARGE)).astype(np.float32)
        found = outputs_of(instance.execute({"x": x}, wanted))
        kept.append((x.copy(), found))
        # The memory of a request is used again.
        x[...] = np.nan
    for x, found in kept:
        assert set(found) == set(wanted)
        for name, array in found.items():
            np.testing.assert_array_equal(array, -x if name.startswith("negative") else x, name)


class Memory:
    """An `OutputMemory` that has memory for every second batch, which later batches overwrite."""

    def __init__(self) -> None:
        self.block = np.zeros(32 << 20, np.uint8)
        self.batches = 0

    def arrays(self, layouts: Sequence[Layout]) -> Sequence[np.ndarray] | None:
        self.batches += 1
        (shape, dtype), *others = layouts
        assert others == []
        return [np.ndarray(shape, dtype, self.block)] if self.batches % 2 else None


def test_large_outputs_are_written_into_the_memory_for_them(load: Load) -> None:
    proto = convolution()
    instance = load(proto, CONVOLVED, batch_buckets="2,4")
    expected = load(proto, CONVOLVED, batch_buckets="2,4")
    memory = Memory()
    instance.place_outputs(memory)
    kept = []
    for seed, rows in enumerate((2, 2, 3, 4, 1)):
        x = np.random.default_rng(seed).standard_normal((rows, 3, 96, 96)).astype(np.float32)
        found, wanted = (outputs_of(each.execute({"x": x}, ["y"]))["y"] for each in (instance, expected))
        np.testing.assert_array_equal(found, wanted)
        is_placed = memory.batches % 2 == 1
        assert np.shares_memory(found, memory.block) == is_placed
        if not is_placed:
            kept.append((found, wanted))
    for found, wanted in kept:
        np.testing.assert_array_equal(found, wanted)
    assert memory.batches == 5


HAS_BFLOAT16 = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def test_bfloat16_is_used_only_on_request(load: Load) -> None:
    x = np.random.default_rng(0).standard_normal((1, 3, 96, 96)).astype(np.float32)
    runs = [load(convolution(), CONVOLVED, precision=precision).execute({"x": x}, ["y"]) for precision in ("f32", "bf16")]
    single, brief = (outputs_of(each)["y"] for each in runs)
    plain = load(convolution(), CONVOLVED).execute({"x": x}, ["y"])["y"]
    assert plain.tobytes() == single.tobytes()
    difference = np.abs(single - brief).max() / np.abs(single).max()
    assert (0 < difference < 0.02) if HAS_BFLOAT16 else difference == 0


def test_bfloat16_becomes_single_precision_on_a_cpu_without_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class WithoutBfloat16:
        """A core on a CPU without bfloat16; it records the precision of compilations."""

        def __init__(self) -> None:
            self.core = ov.Core()
            self.compiled_with: list[str] = []

        def get_property(self, device: str, name: str) -> list[str]:
            return [capability for capability in self.core.get_property(device, name) if capability != "BF16"]

        def read_model(self, path: str) -> object:
            return self.core.read_model(path)

        def compile_model(self, model: object, device: str, settings: dict[str, object]) -> object:
            self.compiled_with.append(str(settings["INFERENCE_PRECISION_HINT"]))
            return self.core.compile_model(model, device, settings)

    loader = Loader()
    loader._core = core = WithoutBfloat16()
    parameters = ModelParameters(precision="bf16", buckets=(4,))
    loader.load(request(tmp_path, convolution(), CONVOLVED), parameters, None).close()
    assert core.compiled_with == ["f32"]
    assert "precision bf16 becomes f32, as this CPU has no bfloat16 instructions" in caplog.text


@pytest.mark.slow
def test_quantised_models_are_correct_at_every_batch_size(load: Load) -> None:
    """Two products in eight bits, one behind the other, with the kernels that would join them switched off."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {
        "zero": np.array(128, np.uint8),
        "scale": np.array(0.05, np.float32),
        "weight_scale": np.array(0.005, np.float32),
    }
    arrays |= {f"w{n}": rng.integers(-127, 128, shape, np.int8) for n, shape in enumerate([(16, 64), (64, 10)])}
    make = helper.make_node
    nodes = []
    value = "x"
    for n in (0, 1):
        nodes += [
            make("QuantizeLinear", [value, "scale", "zero"], [f"q{n}"]),
            make("DequantizeLinear", [f"q{n}", "scale", "zero"], [f"d{n}"]),
            make("DequantizeLinear", [f"w{n}", "weight_scale"], [f"f{n}"]),
            make("MatMul", [f"d{n}", f"f{n}"], [value := f"p{n}"]),
        ]
    nodes += [make("QuantizeLinear", [value, "scale", "zero"], ["q2"]), make("DequantizeLinear", ["q2", "scale", "zero"], ["y"])]
    tensors = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    proto = onnx_models.model(nodes, [onnx_models.value("x", ("n", 16))], [onnx_models.value("y", ("n", 10))], tensors)
    served = signature({"x": (DataType.FP32, (16,))}, {"y": (DataType.FP32, (10,))}, 16)
    instance = load(proto, served, batch_buckets="1,2,3,4,5,6,7,8,12,16", INFERENCE_NUM_THREADS="1")
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for rows in range(1, 17):
        x = rng.standard_normal((rows, 16)).astype(np.float32)
        np.testing.assert_allclose(outputs_of(instance.execute({"x": x}, ["y"]))["y"], session.run(["y"], {"x": x})[0], atol=0.21)


@pytest.mark.slow
def test_batches_run_in_parallel_up_to_the_depth(load: Load) -> None:
    instance = load(convolution(), CONVOLVED, pipeline_depth="3", batch_buckets="1,4")
    assert instance.pipeline_depth == 3
    images = [np.full((1 + seed % 4, 3, 96, 96), seed, np.float32) for seed in range(12)]

    def run(image: np.ndarray) -> np.ndarray:
        return outputs_of(instance.execute({"x": image}, ["y"]))["y"]

    expected = [run(image) for image in images]
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(run, images))
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_file_of_fixed_batch_size_runs_at_that_size(load: Load) -> None:
    served = signature({"x": (DataType.FP32, (2,))}, {"y": (DataType.FP32, (2,))}, 4)
    instance = load(onnx_models.identity(shape=(4, 2)), served)
    assert instance.static_batch_size == 4
    assert instance.execute({"x": np.ones((4, 2), np.float32)}, ["y"])["y"].shape == (4, 2)


def test_integer_that_would_be_truncated_is_refused(load: Load) -> None:
    instance = load(onnx_models.identity(DataType.INT64), signature({"x": (DataType.INT64, (2,))}, {"y": (DataType.INT64, (2,))}, 8))
    fits = np.array([[-(2**31), 2**31 - 1]])
    assert instance.execute({"x": fits}, ["y"])["y"].tolist() == fits.tolist()
    for value in (2**31, -(2**31) - 1):
        with pytest.raises(InvalidRequest, match=f"input 'x' holds .*{value}.*computed in 32 bits"):
            instance.execute({"x": np.array([[0, value]])}, ["y"])


def test_strings_are_refused_with_the_name_of_a_backend_for_them(load: Load) -> None:
    with pytest.raises(ModelLoadError, match=r"input\[0\].data_type: input 'x': OpenVINO serves no strings; backend onnxruntime does"):
        load(onnx_models.identity(DataType.BYTES), signature({"x": (DataType.BYTES, (2,))}, {"y": (DataType.BYTES, (2,))}, 8))


def test_unknown_operator_is_named_in_one_line(load: Load, tmp_path: Path) -> None:
    node = helper.make_node("NoSuchOperator", ["x"], ["y"])
    proto = onnx_models.model([node], [onnx_models.value("x", ("n", 2))], [onnx_models.value("y", ("n", 2))])
    with pytest.raises(ModelLoadError, match="NoSuchOperator") as caught:
        load(proto, signature({"x": (DataType.FP32, (2,))}, {"y": (DataType.FP32, (2,))}))
    assert "'model.onnx'" in caught.value.message
    assert "\n" not in caught.value.message
    assert str(tmp_path) not in caught.value.message


def test_invalid_parameter_stops_the_load(load: Load) -> None:
    with pytest.raises(ModelLoadError, match=r"precision.*takes f32 or bf16"):
        load(onnx_models.sum_and_difference(), SUMS, precision="int4")


def test_ir_is_inspected_and_served_like_onnx(tmp_path: Path) -> None:
    backend = OpenVinoBackend()
    files = ir_files(tmp_path / "ir", onnx_models.sum_and_difference())
    facts = backend.inspect(files, "model.xml")
    assert facts.inputs is not None
    assert facts.outputs is not None
    assert {(tensor.name, tensor.datatype, tensor.shape) for tensor in facts.inputs} == {
        ("a", DataType.FP32, (-1, 2)),
        ("b", DataType.FP32, (-1, 2)),
    }
    assert {tensor.name for tensor in facts.outputs} == {"sum", "difference"}
    instance = backend.load(LoadRequest(model_name="m", version=1, files=files, model_filename="model.xml", signature=SUMS))
    ones = np.ones((3, 2), np.float32)
    assert instance.execute({"a": ones, "b": ones}, ["sum"])["sum"].tolist() == [[2, 2]] * 3
    instance.close()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is not a readable OpenVINO IR file"),
        (b"no markup", "is not a readable OpenVINO IR file: syntax error: line 1, column 0"),
        (b"<net version='3'></net>", "its root is <net> of version 3"),
        (b"<graph></graph>", "its root is <graph> of version none"),
        (b"<net version='11'></net>", "needs its weights in 'model.bin', which the version folder does not have; it holds: model.xml"),
    ],
)
def test_invalid_ir_is_refused(tmp_path: Path, content: bytes, text: str) -> None:
    with pytest.raises(ModelLoadError, match=r"'model\.xml'") as caught:
        OpenVinoBackend().inspect(version_files(tmp_path, {"model.xml": content}), "model.xml")
    assert text in caught.value.message


@pytest.mark.parametrize("name", [b'name="a"', b'names="a"'])
def test_ir_with_a_name_that_is_not_utf8_is_refused(tmp_path: Path, name: bytes) -> None:
    files = ir_files(tmp_path, onnx_models.sum_and_difference())
    path = tmp_path / "model.xml"
    content = path.read_bytes()
    assert name in content
    path.write_bytes(content.replace(name, name.replace(b'a"', b'\xfb"')))
    with pytest.raises(ModelLoadError, match=r"'model\.xml'.*'utf-8' codec can't decode byte 0xfb"):
        OpenVinoBackend().inspect(files, "model.xml")


def test_ir_with_truncated_weights_is_refused(tmp_path: Path) -> None:
    files = ir_files(tmp_path, convolution())
    (tmp_path / "model.bin").write_bytes((tmp_path / "model.bin").read_bytes()[:64])
    with pytest.raises(ModelLoadError, match=r"OpenVINO 20.* does not read 'model\.xml'") as caught:
        OpenVinoBackend().inspect(files, "model.xml")
    assert str(tmp_path) not in caught.value.message


def test_closed_instance_raises(load: Load) -> None:
    instance = load(onnx_models.identity(), signature({"x": (DataType.FP32, (2,))}, {"y": (DataType.FP32, (2,))}))
    instance.close()
    with pytest.raises(Exception, match="the model is closed"):
        instance.execute({"x": np.ones((1, 2), np.float32)}, ["y"])


def test_sizes_fixed_by_the_configuration_are_fixed_in_the_model(load: Load) -> None:
    proto = onnx_models.sum_and_difference(("n", "width"))
    fixed = dataclasses.replace(SUMS, max_batch_size=0)
    fixed = dataclasses.replace(
        fixed,
        inputs=tuple(dataclasses.replace(spec, dims=(3, 2)) for spec in fixed.inputs),
        outputs=tuple(dataclasses.replace(spec, dims=(3, 2)) for spec in fixed.outputs),
    )
    a = np.ones((3, 2), np.float32)
    assert load(proto, fixed).execute({"a": a, "b": a}, ["sum"])["sum"].tolist() == (2 * a).tolist()


@pytest.mark.slow
def test_backend_and_its_package_send_no_telemetry() -> None:
    code = (
        "import sys, threading\n"
        "from stoker.backends.openvino.backend import OpenVinoBackend\n"
        "OpenVinoBackend()\n"
        "assert 'openvino' not in sys.modules, 'imported before it is needed'\n"
        "import openvino\n"
        "assert not [name for name in sys.modules if name.startswith('openvino_telemetry.')]\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.slow
def test_difference_from_onnxruntime_is_reported_on_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    backend = OpenVinoBackend()
    caplog.set_level("INFO", logger="stoker.backends.openvino")
    instance = backend.load(request(tmp_path, convolution(), CONVOLVED, precision="bf16", compare_with_onnxruntime="true"))
    (notice,) = backend.notices()
    by_precision = {
        "bf16": r"differs from onnxruntime's by at most 0\.\d+ \(0\.00\d+ of the largest, .*\), cosine 0\.9999\d\d",
        "f32": r"differs from onnxruntime's by at most [\de.-]+ \([\de.-]+ of the largest, .*\), cosine (1\.0*|0\.99999\d*)",
    }
    used = "bf16" if HAS_BFLOAT16 else "f32"
    assert re.fullmatch(rf"model 'm' version 1 in {used}: output 'y' {by_precision[used]}", notice), notice
    assert notice in caplog.text
    instance.close()
    assert list(backend.notices()) == []


def test_model_that_onnxruntime_cannot_run_is_served_with_a_notice(tmp_path: Path) -> None:
    backend = OpenVinoBackend()
    served = signature({"x": (DataType.FP32, (2,))}, {"y": (DataType.FP32, (2,))})
    instance = backend.load(request(tmp_path, onnx_models.identity(ir_version=99), served, compare_with_onnxruntime="true"))
    (notice,) = backend.notices()
    assert "was not compared with onnxruntime: onnxruntime does not run it: " in notice
    assert "IR version" in notice
    assert str(tmp_path) not in notice
    assert "ONNXRuntimeError" not in notice
    assert instance.execute({"x": np.ones((1, 2), np.float32)}, ["y"])["y"].tolist() == [[1, 1]]
    instance.close()


def test_ir_is_not_compared_with_onnxruntime(tmp_path: Path) -> None:
    files = ir_files(tmp_path, onnx_models.sum_and_difference())
    asked = LoadRequest(
        model_name="m", version=1, files=files, model_filename="model.xml", signature=SUMS, parameters={"compare_with_onnxruntime": "1"}
    )
    with pytest.raises(ModelLoadError, match="is for ONNX files"):
        OpenVinoBackend().load(asked)
