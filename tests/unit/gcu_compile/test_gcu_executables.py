"""Models compiled for the GCU compute as before, at every batch size and in every precision."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from stoker.backends.api.tensor import DataType
from stoker.backends.gcu.compile.target import build
from stoker.backends.gcu.executable import read_executable, write_executable
from stoker.backends.gcu.program import GcuExecutable, GcuTensor
from stoker.backends.simulated.numerics import GraphRunner
from tests.fakes import networks
from tests.fakes.graphs import parse
from tests.fakes.transformers import small_bert

#: Relative to the largest output: what rounding to FLOAT16 may change.
TOLERANCE = {"fp32": 1e-5, "fp16": 1e-2, "mixed": 1e-2}
DIGITS = """g (float[n,6] x, int64[n] place) => (float[n,4] y, int64[n] best) {
    [first] h = Gemm<transB = 1>(x, w, b) [act] r = Relu(h) [second] y = MatMul(r, v)
    found = ArgMax<axis = 1, keepdims = 0>(y) best = Add(found, place) }"""


def dynamic_model(hidden: int = 16) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    shapes = {"w": (hidden, 6), "b": (hidden,), "v": (hidden, 4)}
    return parse(DIGITS, {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()})


def reference(model: onnx.ModelProto, feeds: dict[str, NDArray]) -> list[NDArray]:
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    copied.ir_version = 10
    session = onnxruntime.InferenceSession(copied.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, feeds)]


def run(executable: GcuExecutable, feeds: dict[str, NDArray], at: int = 0) -> list[NDArray]:
    names = [each.name for each in executable.outputs]
    found = GraphRunner(executable.batches[at].onnx, weights=executable.weights).run(feeds, names)
    return [found[name] for name in names]


def assert_close(found: list[NDArray], wanted: list[NDArray], tolerance: float) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        if ours.dtype.kind == "f":
            assert np.max(np.abs(ours - theirs)) <= tolerance * max(1.0, float(np.max(np.abs(theirs))))


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["fp32", "fp16", "mixed"])
@pytest.mark.parametrize("name", ["convolutional", "transformer", "dense", "reducing", "picture"])
def test_compiled_model_equals_the_source(name: str, flag: str) -> None:
    network = getattr(networks, name)()
    executable = build(network.model, build_flag=flag)
    assert executable.precision == flag
    assert_close(run(executable, network.feeds), reference(network.model, network.feeds), TOLERANCE[flag])


def test_inputs_and_outputs_keep_the_models_types_and_order_for_every_flag() -> None:
    for flag in ("fp32", "fp16", "mixed"):
        executable = build(dynamic_model(), batch_sizes=[2], build_flag=flag)
        assert executable.inputs == (GcuTensor("x", DataType.FP32, (6,)), GcuTensor("place", DataType.INT64, ()))
        assert executable.outputs == (GcuTensor("y", DataType.FP32, (4,)), GcuTensor("best", DataType.INT64, ()))


def test_several_batch_sizes_share_their_weights(tmp_path: Path) -> None:
    model = dynamic_model()
    write_executable(tmp_path / "model.exec", build(model, name="digits", batch_sizes=[32, 1, 8]))
    executable = read_executable(tmp_path / "model.exec")
    assert [batch.batch_size for batch in executable.batches] == [1, 8, 32]
    assert sorted(executable.weights) == ["v", "w"]  # b is smaller than a section's own header and name are worth
    assert max(len(batch.onnx) for batch in executable.batches) < 2000
    random = np.random.default_rng(1)
    for at, batch in enumerate(executable.batches):
        rows = batch.batch_size
        feeds: dict[str, np.ndarray] = {"x": random.standard_normal((rows, 6)).astype(np.float32), "place": np.arange(rows)}
        assert_close(run(executable, feeds, at), reference(model, feeds), 1e-5)


def test_weights_of_equal_content_are_one() -> None:
    same = np.random.default_rng(2).standard_normal((8, 8)).astype(np.float32)
    body = "g (float[n,8] x) => (float[n,8] y) { a = MatMul(x, left) b = Relu(a) y = MatMul(b, right) }"
    model = parse(body, {"left": same, "right": same})
    executable = build(model, batch_sizes=[1, 2])
    assert [array.nbytes for array in executable.weights.values()] == [256]
    feeds = {"x": np.ones((2, 8), np.float32)}
    assert_close(run(executable, feeds, 1), reference(model, feeds), 1e-5)


def test_fp16_weights_take_half_the_bytes_and_outputs_are_rounded() -> None:
    full, half, mixed = (build(dynamic_model(64), batch_sizes=[1], build_flag=flag) for flag in ("fp32", "fp16", "mixed"))
    assert {name: array.dtype.itemsize for name, array in half.weights.items() if name in "wv"} == {"w": 2, "v": 2}
    assert half.weight_bytes <= full.weight_bytes / 2 + 64
    assert {name: array.dtype.itemsize for name, array in mixed.weights.items() if name in "wv"} == {"w": 2, "v": 2}
    y, _ = run(half, {"x": np.ones((1, 6), np.float32), "place": np.zeros(1, np.int64)})
    assert np.array_equal(y, y.astype(np.float16).astype(np.float32))


def test_mixed_precision_keeps_fp32_for_sensitive_operators() -> None:
    model = parse("g (float[1,4] x) => (float[1,4] y) { big = MatMul(x, w) y = Mul(big, big) }", {"w": np.full((4, 4), 100, np.float32)})
    feeds = {"x": np.ones((1, 4), np.float32)}
    (mixed,) = run(build(model, build_flag="mixed"), feeds)
    (half,) = run(build(model, build_flag="fp16"), feeds)
    assert mixed.tolist() == [[160000.0] * 4]
    assert np.isinf(half).all()


def test_vendor_names_of_build_flags_are_accepted() -> None:
    for name, flag in (("KDEFAULT", "fp32"), ("KFP16", "fp16"), ("KFP16_MIX", "mixed"), ("", "fp32"), (" Mixed ", "mixed")):
        assert build(dynamic_model(), batch_sizes=[1], build_flag=name).precision == flag


def test_same_model_compiles_to_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_executable(tmp_path / name, build(dynamic_model(), name="m", batch_sizes=[1, 4], build_flag="fp16"))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_file_compiles_as_the_model_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "digits.onnx"
    onnx.save(dynamic_model(), path)
    found = build(path, batch_sizes=[2])
    assert found.name == "digits"
    assert found.batches == build(dynamic_model(), batch_sizes=[2]).batches


def test_input_shapes_may_be_given_instead_of_batch_sizes() -> None:
    executable = build(dynamic_model(), input_shapes={"x": (3, 6), "place": (3,)})
    assert [batch.batch_size for batch in executable.batches] == [3]


def test_model_exported_for_one_batch_compiles_for_several() -> None:
    model = small_bert(1, 6)
    executable = build(model, batch_sizes=[1, 2, 4])
    assert [batch.batch_size for batch in executable.batches] == [1, 2, 4]
    random = np.random.default_rng(6)
    row = {"attention_mask": np.ones((4, 6), np.int32), "token_type_ids": np.zeros((4, 6), np.int32)}
    feeds = {"input_ids": random.integers(0, 10, (4, 6), dtype=np.int32), **row}
    wanted = [reference(model, {name: array[at : at + 1] for name, array in feeds.items()}) for at in range(4)]
    assert_close(run(executable, feeds, 2), [np.concatenate(each) for each in zip(*wanted, strict=True)], 1e-4)


def test_outputs_may_be_chosen() -> None:
    assert [each.name for each in build(dynamic_model(), batch_sizes=[1], outputs=["best"]).outputs] == ["best"]


def test_given_model_is_unchanged() -> None:
    model = dynamic_model()
    before = model.SerializeToString(deterministic=True)
    build(model, batch_sizes=[1, 2], build_flag="fp16")
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.slow
def test_transformer_with_three_inputs_compiles_in_their_order() -> None:
    model = small_bert(2, 6)
    executable = build(model, build_flag="mixed")
    assert [each.name for each in executable.inputs] == ["input_ids", "attention_mask", "token_type_ids"]
    random = np.random.default_rng(5)
    feeds = {
        "input_ids": random.integers(0, 10, (2, 6), dtype=np.int32),
        "attention_mask": np.ones((2, 6), np.int32),
        "token_type_ids": np.zeros((2, 6), np.int32),
    }
    assert_close(run(executable, feeds), reference(model, feeds), 2e-2)


def test_compile_facts_are_in_the_executable() -> None:
    executable = build(dynamic_model(), batch_sizes=[1], resource_mode="2c")
    assert executable.card == "i20"
    assert executable.attributes["clusters"] == "2"
    assert executable.attributes["simulated"] == "true"
    assert len(executable.attributes["program_sha256"]) == 64


@pytest.mark.parametrize("flag", ["fp32", "fp16", "mixed"])
@pytest.mark.parametrize("name", ["convolutional", "transformer", "dense", "reducing", "picture"])
def test_host_computes_fewer_rows_with_the_bits_of_the_padded_batch(name: str, flag: str) -> None:
    network = getattr(networks, name)()
    executable = build(network.model, build_flag=flag, batch_sizes=[8])
    assert executable.attributes.get("padded_on_host", "") == ""
    runner = GraphRunner(executable.batches[0].onnx, weights=executable.weights)
    assert runner.has_variable_rows([each.name for each in executable.inputs])
    generator = np.random.default_rng(0)
    feeds = {each.name: generator.integers(0, 2, (8, *each.dims)).astype(each.dtype.numpy) for each in executable.inputs}
    names = [each.name for each in executable.outputs]
    for rows in (2, 3, 5):
        padded = {name: np.concatenate([array[:rows], np.zeros_like(array[rows:])]) for name, array in feeds.items()}
        few, whole = runner.run({name: array[:rows] for name, array in feeds.items()}, names), runner.run(padded, names)
        assert all(few[name].tobytes() == whole[name][:rows].tobytes() for name in names)
