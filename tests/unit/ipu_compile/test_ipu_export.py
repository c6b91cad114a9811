"""From converted models to PopEF files and back."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from stoker.backends.ipu.compile.compiler import as_source, compile_and_export, compile_model, compile_program
from stoker.backends.ipu.compile.constants import FITTED
from stoker.backends.ipu.compile.memory import OutOfTileMemory
from stoker.backends.ipu.compile.target import IpuTarget
from stoker.backends.ipu.opaques import COMPILATION, HOST_CONCAT, MODEL_FUSION, NOTES, PACKING, FusionMap, HostConcat, load_facts
from stoker.backends.ipu.popef.model import Model, ModelBuilder
from stoker.backends.ipu.popef.reader import Reader
from stoker.backends.ipu.popef.schema import Anchor, DataType, TensorType
from stoker.backends.ipu.program import StepKind
from stoker.backends.simulated.numerics import GraphRunner
from stoker.compiler import marks
from stoker.compiler.convert.converter import Converter
from stoker.compiler.errors import CompileError, OptionError, ShapeError, UnsupportedOperators
from stoker.compiler.options import CompilerOptions
from stoker.compiler.target import Artefact, SourceModel
from tests.fakes.graphs import parse, random_feeds, run_onnx

RELU = "g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"


def export(path: Path, *models: onnx.ModelProto, **options: Any) -> Artefact:
    return IpuTarget().export([as_source(model) for model in models], CompilerOptions(**options), path / "executable.popef")


def read(path: Path) -> Model:
    reader = Reader()
    reader.parse_file(path)
    return ModelBuilder(reader).create_model()


def run(model: Model, feeds: dict[str, np.ndarray], graph: int = 0) -> dict[str, np.ndarray]:
    """Runs a sub-graph by its anchors, weights from tensor data."""
    sub_graph = model.program().graphs[graph]
    tensors = {each.tensor: feeds[each.anchor] for each in sub_graph.inputs}
    for each in sub_graph.weights:
        info = model.tensors[each.anchor].info.tensor_info
        tensors[each.tensor] = np.frombuffer(model.tensors[each.anchor].data(), info.data_type.numpy).reshape(info.shape)
    results = GraphRunner(sub_graph.onnx).run(tensors, [each.tensor for each in sub_graph.outputs])
    return {each.anchor: results[each.tensor] for each in sub_graph.outputs}


def seed_models() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The two models of PopRT's tutorial on model fusion."""
    first = parse("a (float[1,2] X, float[1,2] Y) => (float[2] O) { Z = Add(X, Y) O = Reshape(Z, C) }", {"C": np.array([2])}, opset=11)
    second = parse(
        "b (float16[1,1] X) => (float16[1,3] O) { O = Concat<axis=1>(X, C) }", {"C": np.array([[1.5, 2.0]], np.float16)}, opset=11
    )
    return first, second


def test_model_round_trips_through_a_file(tmp_path) -> None:
    model = parse(RELU)
    artefact = export(tmp_path, model)
    loaded = read(artefact.path)
    feeds = random_feeds(model)
    np.testing.assert_array_equal(run(loaded, feeds)["y"], run_onnx(model, feeds)["y"])
    assert [step.kind for step in loaded.program().graphs[0].steps].count(StepKind.HOST_READ) == 1


def test_metadata_contain_the_facts_for_a_runtime(tmp_path) -> None:
    artefact = export(tmp_path, parse(RELU), ipu_version="ipu21", batches_per_step=4, engine_options={"target.hostSyncTimeout": "600"})
    metadata = read(artefact.path).metadata
    assert [(anchor.name, anchor.handle, anchor.type, anchor.programs) for anchor in metadata.anchors] == [
        ("x", "h2d_x", TensorType.INPUT, (5,)),
        ("y", "anchor_d2h_y", TensorType.OUTPUT, (5,)),
    ]
    assert [(anchor.tensor_info.shape, anchor.tensor_info.data_type) for anchor in metadata.anchors] == [((2, 3), DataType.F32)] * 2
    assert (metadata.ipu_version, metadata.num_ipus, metadata.device_iterations) == (21, 1, 4)
    assert (metadata.program_flow.load, metadata.program_flow.main, metadata.program_flow.save) == ((0,), (5,), ())
    assert {metadata.programs_map[number] for number in (0, 5)} == {"WeightsFromHost", "Program"}
    assert {option.name: option.value for option in metadata.engine_options} == {"target.hostSyncTimeout": "600"}
    assert metadata.is_inference


def test_replicas_have_a_leading_dimension_each_and_the_graph_has_none(tmp_path) -> None:
    artefact = export(tmp_path, parse(RELU), replication_factor=2, batches_per_step=3)
    loaded = read(artefact.path)
    assert [(anchor.tensor_info.shape, anchor.is_per_replica) for anchor in loaded.metadata.anchors] == [((2, 2, 3), True)] * 2
    assert (loaded.metadata.replication_factor, loaded.metadata.num_ipus) == (2, 1)
    assert GraphRunner(loaded.program().graphs[0].onnx).run({"x": np.ones((2, 3), np.float32)}, ["y"])["y"].shape == (2, 3)
    assert artefact.config == {"backend": "poplar", "max_batch_size": 2 * 3 * 2, "parameters": {}}


@pytest.mark.parametrize(
    ("text", "axis", "rows"),
    [
        ("g (float[4,3] x, float[4] s) => (float[4,3] y, float[4] t) { y = Relu(x) t = Exp(s) }", 0, 4),
        ("g (float[4,3] x, float[2] s) => (float[4,3] y, float[2] t) { y = Relu(x) t = Exp(s) }", 0, 0),
        ("g (float[1,2] x) => (float[2] y) { y = Squeeze(x) }", 0, 0),
        ("g (float[3,4,2] x) => (float[3,4,2] y) { y = Relu(x) }", 1, 4),
        ("g (float[3] x) => (float[3] y) { y = Relu(x) }", 1, 0),
    ],
)
def test_batch_is_the_common_dimension_of_all_streams(text, axis, rows) -> None:
    program, _ = compile_program([as_source(parse(text))], CompilerOptions(batch_axis=axis))
    assert (program.micro_batch_size, program.batch_axis) == (rows, axis if rows else -1)


def test_fused_models_have_the_tutorials_names(tmp_path) -> None:
    loaded = read(export(tmp_path, *seed_models()).path)
    described = [(anchor.name, anchor.tensor_info.data_type, anchor.tensor_info.shape) for anchor in loaded.metadata.anchors]
    assert described == [
        ("index", DataType.U8, (1,)),
        ("graph0/stream0", DataType.F32, (1, 2)),
        ("graph0/stream1", DataType.F32, (1, 2)),
        ("graph0/O", DataType.F32, (2,)),
        ("graph1/stream0", DataType.F16, (1, 1)),
        ("graph1/O", DataType.F16, (1, 3)),
    ]
    one = np.ones((1, 2), np.float32)
    np.testing.assert_array_equal(run(loaded, {"graph0/stream0": one, "graph0/stream1": 2 * one})["graph0/O"], [3, 3])
    half = run(loaded, {"graph1/stream0": np.zeros((1, 1), np.float16)}, graph=1)["graph1/O"]
    np.testing.assert_array_equal(half, np.array([[0, 1.5, 2]], np.float16))


def test_fusion_map_names_the_model_of_each_stream(tmp_path) -> None:
    fusion = FusionMap.from_bytes(read(export(tmp_path, *seed_models()).path).opaques[MODEL_FUSION])
    assert [(graph.index, graph.name, graph.model) for graph in fusion.graphs] == [(0, "graph0", "a"), (1, "graph1", "b")]
    assert [(each.anchor, each.tensor, each.aliases) for each in fusion.graphs[0].inputs] == [
        ("graph0/stream0", "X", ("graph0/X",)),
        ("graph0/stream1", "Y", ("graph0/Y",)),
    ]
    assert [(each.anchor, each.aliases, each.shape, each.dtype) for each in fusion.graphs[1].outputs] == [
        ("graph1/O", (), (1, 3), "float16")
    ]


def test_streams_are_numbered_in_the_source_models_input_order(tmp_path) -> None:
    model = parse("g (float[2] b, float[2] a) => (float[2] y) { y = Sub(a, b) }")
    source = SourceModel(model=model, name="m", inputs=("a", "b"))
    program, _ = compile_program([source, source], CompilerOptions())
    assert [(each.anchor, each.tensor) for each in program.graphs[0].inputs] == [("graph0/stream0", "a"), ("graph0/stream1", "b")]


def test_memory_of_fused_models_is_summed_unless_they_alternate() -> None:
    weight = np.ones((256, 256), np.float32)
    model = parse("g (float[8,256] x) => (float[8,256] y) { y = MatMul(x, w) }", {"w": weight})
    alone, _ = compile_program([as_source(model)])
    fused, _ = compile_program([as_source(model)] * 3)
    one, three = alone.memory[0].by_category, fused.memory[0].by_category
    assert three["weights"] == 3 * one["weights"] > 0
    assert three["activations"] == one["activations"] > 0
    assert fused.memory[0].tile_bytes[0] == sum(three.values())
    # The support code that every program has is there once.
    assert one["code"] < three["code"] == 3 * one["code"] - 2 * math.ceil(FITTED.fixed_code_bytes)
    assert fused.weight_bytes == 3 * alone.weight_bytes


def test_models_that_fit_alone_are_refused_if_their_sum_does_not() -> None:
    model = parse("g (float[1,512] x) => (float[1,512] y) { y = MatMul(x, w) }", {"w": np.ones((512, 512), np.float32)})
    options = CompilerOptions(tiles_per_ipu=4)
    compile_program([as_source(model)], options)
    with pytest.raises(OutOfTileMemory, match=r"Out of memory on tile 0: \d+ bytes"):
        compile_program([as_source(model)] * 4, options)


def test_weights_may_be_tensor_data_that_a_runtime_binds(tmp_path) -> None:
    model = parse(
        "g (float16[2,8] x) => (float16[2,4] y) { a = MatMul(x, w) y = Add(a, b) }",
        {"w": np.random.default_rng(0).standard_normal((8, 4)).astype(np.float16), "b": np.ones(4, np.float16)},
    )
    feeds = random_feeds(model)
    constant = run(read(export(tmp_path, model).path), feeds)["y"]
    loaded = read(export(tmp_path, model, constant_weights=False).path)
    assert {name: tensor.info.tensor_info.shape for name, tensor in loaded.tensors.items()} == {"w": (8, 4), "b": (4,)}
    weights = [anchor for anchor in loaded.metadata.anchors if anchor.programs == (0,)]
    assert {(anchor.name, anchor.tensor_info.data_type) for anchor in weights} == {("w", DataType.F16), ("b", DataType.F16)}
    np.testing.assert_array_equal(run(loaded, feeds)["y"], constant)


def test_weights_of_fused_models_have_different_names(tmp_path) -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Add(x, w) }", {"w": np.ones(2, np.float32)})
    loaded = read(export(tmp_path, model, model, constant_weights=False).path)
    assert set(loaded.tensors) == {"graph0/w", "graph1/w"}


def test_repeated_compilation_writes_the_same_file(tmp_path) -> None:
    first = export(tmp_path / "a", *seed_models()).path.read_bytes()
    assert export(tmp_path / "b", *seed_models()).path.read_bytes() == first


def test_another_model_has_another_name() -> None:
    first, second = (compile_program([as_source(model)])[1].executable for model in seed_models())
    assert first != second


def test_failed_compilation_leaves_existing_files_unchanged(tmp_path) -> None:
    path = export(tmp_path, parse(RELU)).path
    before = path.read_bytes()
    with pytest.raises(ShapeError):
        export(tmp_path, parse("g (float[n] x) => (float[n] y) { y = Relu(x) }"))
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["executable.popef"]


def test_unwritable_path_is_a_compile_error(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CompileError, match="cannot be written"):
        export(tmp_path / "file", parse(RELU))


def test_unsupported_operators_are_reported_before_sizes_that_only_they_produce() -> None:
    with pytest.raises(UnsupportedOperators, match="NonZero"):
        compile_model(parse("g (float[4] x) => (int32[1,n] y) { a = NonZero(x) y = Cast<to=6>(a) }"))


def test_empty_list_of_models_is_refused() -> None:
    with pytest.raises(OptionError, match="no model"):
        compile_program([])


def test_two_streams_of_one_name_are_refused() -> None:
    model = parse("g (float[2] x) => (float[2] x) { }")
    with pytest.raises(OptionError, match="two streams are called 'x'"):
        compile_program([as_source(model)])


def test_facts_and_own_blobs_are_in_the_file(tmp_path) -> None:
    artefact = export(tmp_path, parse(RELU), opaque_blobs={"mine": b"\x00\x01"})
    opaques = read(artefact.path).opaques
    assert opaques["mine"] == b"\x00\x01"
    facts = load_facts(COMPILATION, opaques[COMPILATION])
    assert (facts["simulated"], facts["precision"], facts["models"]) == (True, "fp32", ["g"])
    assert artefact.summary["device"] == "simulated IPU, M2000 (ipu2)"
    latencies_ms = artefact.summary["modelled_latency_ms"]
    assert isinstance(latencies_ms, dict)
    assert latencies_ms["g"] > 0


def test_notes_of_passes_reach_options_and_blobs(tmp_path) -> None:
    model = parse("g (int32[4,3] all) => (int32[2,3] a, int32[2,3] b) { a, b = Split(all, s) }", {"s": np.array([2, 2])})
    concat = '[{"tensor_name": "all", "input_tensor_names": ["p", "q"], "shape": [2, 3], "dtype": "int32", "data_size_bytes": 24}]'
    notes = {marks.NUM_IO_TILES: "32", marks.HOST_CONCAT: concat, marks.PACKING: '{"rows": 2}', "note": "to self"}
    for key, value in notes.items():
        model.metadata_props.add(key=key, value=value)
    loaded = read(export(tmp_path, model).path)
    assert loaded.program().num_io_tiles == 32
    assert [
        (each.tensor_name, each.input_tensor_names, each.dtype) for each in HostConcat.from_bytes(loaded.opaques[HOST_CONCAT]).inputs
    ] == [("all", ("p", "q"), "int32")]
    assert loaded.opaques[PACKING] == b'{"rows": 2}'
    assert load_facts(NOTES, loaded.opaques[NOTES]) == {marks.NUM_IO_TILES: "32", "note": "to self"}
    fused = read(export(tmp_path, model, parse(RELU)).path)
    assert HostConcat.from_bytes(fused.opaques[HOST_CONCAT]).inputs[0].tensor_name == "graph0/stream0"
    with pytest.raises(OptionError, match="converted for 32 IO tiles, num_io_tiles is 64"):
        export(tmp_path, model, num_io_tiles=64)


def test_invalid_note_is_a_compile_error() -> None:
    model = parse(RELU)
    model.metadata_props.add(key=marks.HOST_CONCAT, value="[{}]")
    with pytest.raises(CompileError, match="'tensor_name' is None"):
        compile_model(model)


def test_progress_is_reported() -> None:
    steps: list[tuple[int, int]] = []
    compile_program([as_source(parse(RELU))] * 2, CompilerOptions(compilation_progress_logger=lambda *step: steps.append(step)))
    assert steps == [(0, 2), (1, 2), (2, 2)]


def test_file_may_be_compressed(tmp_path) -> None:
    model = parse("g (float[1,64] x) => (float[1,64] y) { y = MatMul(x, w) }", {"w": np.zeros((64, 64), np.float32)})
    plain = export(tmp_path / "plain", model).path.stat().st_size
    path = export(tmp_path / "small", model, compress=True).path
    assert path.stat().st_size < plain / 2
    feeds = random_feeds(model)
    assert not run(read(path), feeds)["y"].any()


def test_requested_outputs_are_the_anchors(tmp_path) -> None:
    model = parse("g (float[2] x) => (float[2] y, float[2] z) { y = Relu(x) z = Exp(x) }")
    compiled = compile_and_export(model, ["z"], tmp_path / "m.popef")
    assert [anchor.name for anchor in compiled.metadata.anchors if _is_output(anchor)] == ["z"]
    assert [anchor.name for anchor in read(tmp_path / "m.popef").metadata.outputs] == ["z"]


def _is_output(anchor: Anchor) -> bool:
    return anchor.type is TensorType.OUTPUT


SIDE_INPUTS = "g (float[4,3] x, float scale, float[9,3] table) => (float[4,3] y) { t = ReduceSum(table) p = Mul(x, scale) y = Add(p, t) }"


def test_rows_are_those_of_the_outputs_although_an_input_has_none(tmp_path) -> None:
    artefact = export(tmp_path, parse(SIDE_INPUTS))
    program = read(artefact.path).program()
    assert (program.micro_batch_size, program.batch_axis) == (4, 0)
    assert artefact.config["max_batch_size"] == 0  # servers would have to batch the table, too


@pytest.mark.parametrize("axis", [0, 1])
def test_servers_batch_along_the_first_dimension_only(tmp_path, axis: int) -> None:
    artefact = export(tmp_path, parse("g (float[2,2] x) => (float[2,2] y) { y = Relu(x) }"), batch_axis=axis)
    assert artefact.config["max_batch_size"] == (0 if axis else 2)


def test_each_fused_model_is_served_separately_with_its_tensor_names(tmp_path) -> None:
    two_rows = parse("b (float[2,3] x) => (float[2,3] y) { y = Relu(x) }")
    four_rows = parse("a (float[4,3] x, float[4,3] z) => (float[4,3] y) { y = Add(x, z) }")
    artefact = export(tmp_path, two_rows, four_rows, batches_per_step=2)
    assert artefact.config == {}
    assert [part.suffix for part in artefact.parts] == ["graph0", "graph1"]
    assert [part.config["max_batch_size"] for part in artefact.parts] == [4, 8]
    assert [part.config["parameters"] for part in artefact.parts] == [{"sub_graph": "0"}, {"sub_graph": "1"}]
    assert json.loads(artefact.parts[1].files["name_map.json"]) == {"graph1/stream0": "x", "graph1/stream1": "z", "graph1/y": "y"}
    assert artefact.summary["micro_batch_size"] == {"graph0": 2, "graph1": 4}


@pytest.mark.parametrize("precision", ["fp32", "fp16", "fp8", "fp8_weight"])
def test_summary_names_the_precision_as_requested(tmp_path, precision: str) -> None:
    model = parse("g (float[4,3] x) => (float[4,2] y) { y = MatMul(x, w) }", {"w": np.ones((3, 2), np.float32)})
    converted = Converter(precision=precision).convert_internal(model)
    assert export(tmp_path, converted, ipu_version="ipu21").summary["precision"] == precision
