"""Passes that mark a model for its target: remaps, IO tiles, devices and stages."""

import numpy as np
import onnx
import pytest

from stoker.compiler.errors import OptionError, PassError
from stoker.compiler.marks import IPU_NUMBER, NUM_IO_TILES, PIPELINE_STAGE, REMAP
from stoker.compiler.passes import get_pass
from stoker.compiler.passes.layout.placement import AutoInsertRemap, ManualSharding, OverlapIo
from tests.fakes.graphs import assert_same_results, assert_valid, op_types, parse

CHAIN = "g (float[2,4] x) => (float[2,4] y) { a = MatMul(x, w) b = Relu(a) c = Softmax(b) y = Add(c, a) }"
WEIGHTS = {"w": np.eye(4, dtype=np.float32) * 2}


def named(model: onnx.ModelProto) -> onnx.ModelProto:
    for node in model.graph.node:
        node.name = f"n_{node.output[0]}"
    return model


def marks(model: onnx.ModelProto, key: str) -> dict[str, str]:
    return {node.name: each.value for node in model.graph.node for each in node.metadata_props if each.key == key}


@pytest.mark.parametrize(
    ("modes", "ops"),
    [
        (["after_matmul"], ["MatMul", "Identity", "Relu", "Softmax", "Add"]),
        ("before_Softmax,before_add", ["MatMul", "Relu", "Identity", "Softmax", "Identity", "Identity", "Add"]),
        (["after_add"], ["MatMul", "Relu", "Softmax", "Add", "Identity"]),
        (["before_matmul"], ["Identity", "MatMul", "Relu", "Softmax", "Add"]),
        (["after_conv"], ["MatMul", "Relu", "Softmax", "Add"]),
    ],
)
def test_remaps_are_inserted_at_the_requested_tensors_and_change_no_value(modes, ops):
    model = parse(CHAIN, WEIGHTS)
    remapped = AutoInsertRemap(modes)(model)
    assert op_types(remapped) == ops
    assert len(marks(remapped, REMAP)) == ops.count("Identity")
    assert_valid(remapped)
    assert_same_results(model, remapped, rtol=0, atol=0)


def test_clean_up_after_remapping_keeps_the_remaps():
    remapped = AutoInsertRemap(["after_matmul"])(parse(CHAIN, WEIGHTS))
    assert op_types(get_pass("eliminate_identity")(remapped)) == op_types(remapped)


@pytest.mark.parametrize("mode", ["matmul", "around_matmul", "after_", ""])
def test_unreadable_remap_mode_is_refused(mode):
    with pytest.raises(OptionError, match="remap_mode"):
        AutoInsertRemap([mode])


def test_io_tiles_are_recorded_without_changing_the_graph():
    model = parse(CHAIN, WEIGHTS)
    marked = OverlapIo(num_io_tiles=32)(model)
    assert {each.key: each.value for each in marked.metadata_props} == {NUM_IO_TILES: "32"}
    assert op_types(marked) == op_types(model)
    assert_same_results(model, marked, rtol=0, atol=0)
    with pytest.raises(OptionError, match="at least 1"):
        OverlapIo(num_io_tiles=0)


def test_shard_point_includes_its_ancestors_and_other_nodes_get_the_next_number():
    text = "g (float[2] x) => (float[2] y, float[2] z) { a = Relu(x) b = Neg(a) c = Exp(b) d = Add(b, x) y = Add(c, d) z = Sqrt(a) }"
    model = named(parse(text))
    sharded = ManualSharding([{"node": "n_c", "device": 2, "stage": 1}, {"node": "n_a", "device": 0, "stage": 0}])(model)
    assert marks(sharded, IPU_NUMBER) == {"n_a": "0", "n_b": "2", "n_c": "2", "n_d": "3", "n_y": "3", "n_z": "3"}
    assert marks(sharded, PIPELINE_STAGE) == {"n_a": "0", "n_b": "1", "n_c": "1", "n_d": "2", "n_y": "2", "n_z": "2"}
    assert_same_results(model, sharded, rtol=0, atol=0)


def test_sharding_reads_a_yaml_file_and_poprts_dictionaries(tmp_path):
    file = tmp_path / "shard.yaml"
    file.write_text("-\n  node: n_a\n  device: 0\n  stage: 0\n- {node: n_b, device: 1, stage: 1}\n")
    model = named(parse(CHAIN, WEIGHTS))
    from_file = ManualSharding(str(file))(model)
    info = {"n_a": 0, "n_b": 1}
    assert marks(from_file, IPU_NUMBER) == {"n_a": "0", "n_b": "1", "n_c": "2", "n_y": "2"}
    assert from_file == ManualSharding(sharding_info=info, pipelining_info=info)(model)


def test_outer_values_of_a_branch_belong_to_the_part_of_its_node():
    text = """g (float[2] x, bool p) => (float[2] y, float[2] z) {
      a = Relu(x)  b = If (p) <then_branch = t () => (float[2] u) { u = Neg(a) }, else_branch = f () => (float[2] v) { v = Exp(a) }>
      y = Neg(b)   z = Exp(x)
    }"""
    sharded = ManualSharding([{"node": "n_b", "device": 0}])(named(parse(text)))
    assert marks(sharded, IPU_NUMBER) == {"n_a": "0", "n_b": "0", "n_y": "1", "n_z": "1"}


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ([], "expected a list"),
        ([{"device": 0}], "each entry must be"),
        ([{"node": "a", "device": -1}], "device of node 'a' must be a whole number from 0"),
        ([{"node": "a", "device": "one"}], "device of node 'a'"),
        ([{"node": "a", "ipu": 0}], "unknown key 'ipu'"),
        ([{"node": "a"}], "neither a device nor a stage"),
        ([{"node": "a", "device": 0}, {"node": "a", "device": 1}], "'a' is given twice"),
        ("missing.yaml", "missing.yaml"),
    ],
)
def test_bad_sharding_config_is_refused_with_its_position(config, text):
    with pytest.raises(OptionError, match=text):
        ManualSharding(config)


def test_sharding_needs_unique_names():
    with pytest.raises(PassError, match="no node named 'n_d'; nearest: n_"):
        ManualSharding([{"node": "n_d", "device": 0}])(named(parse(CHAIN, WEIGHTS)))
    twice = named(parse(CHAIN, WEIGHTS))
    twice.graph.node[1].name = twice.graph.node[2].name
    with pytest.raises(PassError, match="used more than once: n_c"):
        ManualSharding([{"node": "n_a", "device": 0}])(twice)
    with pytest.raises(PassError, match="has no name"):
        ManualSharding([{"node": "n_a", "device": 0}])(parse(CHAIN, WEIGHTS))


def test_stages_alone_need_a_model_with_devices():
    model = named(parse(CHAIN, WEIGHTS))
    with pytest.raises(OptionError, match="stages without devices"):
        ManualSharding(pipelining_info={"n_a": 0})(model)
    staged = ManualSharding(pipelining_info={"n_a": 0})(ManualSharding(sharding_info={"n_a": 0})(model))
    assert marks(staged, PIPELINE_STAGE) == {"n_a": "0", "n_b": "1", "n_c": "1", "n_y": "1"}
