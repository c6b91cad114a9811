from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from stoker.backends.api.tensor import DataType
from stoker.backends.onnx_files.declarations import SERVED, element_name
from stoker.backends.onnx_files.model_file import (
    MAX_FILE_BYTES,
    TENSOR_HOLDERS,
    ExternalTensor,
    OnnxFile,
    OnnxValue,
    UnreadableOnnx,
    read_onnx_file,
)
from tests.fakes.onnx_models import ONNX_TYPES, identity, model, sum_and_difference, value


def read(folder: Path, content: bytes | onnx.ModelProto) -> OnnxFile:
    path = folder / "model.onnx"
    path.write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
    return read_onnx_file(path)


def external(name: str, location: str = "weights.bin", **entries: str) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    for key, text in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=text)
    return tensor


def test_versions_producer_and_interface_are_read(tmp_path: Path) -> None:
    proto = sum_and_difference(("n", 3, None))
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 4))
    found = read(tmp_path, proto)
    assert found.ir_version == 10
    assert found.opsets == {"ai.onnx": 21, "ai.onnx.ml": 4}
    assert found.producer == "stoker-tests"
    assert found.inputs == (OnnxValue("a", "tensor", 1, (-1, 3, -1)), OnnxValue("b", "tensor", 1, (-1, 3, -1)))
    assert [output.name for output in found.outputs] == ["sum", "difference"]
    assert found.external == ()


@pytest.mark.parametrize(("shape", "expected"), [(None, None), ((), ()), ((0,), (0,)), ((2, "n"), (2, -1)), ((-5,), (-1,))])
def test_shapes_are_read(tmp_path: Path, shape: tuple[int | str, ...] | None, expected: tuple[int, ...] | None) -> None:
    assert read(tmp_path, identity(shape=shape)).inputs[0].shape == expected


@pytest.mark.parametrize("ir_version", [3, 10])
def test_inputs_with_an_initializer_are_optional(tmp_path: Path, ir_version: int) -> None:
    weight = numpy_helper.from_array(np.ones(2, np.float32), "w")
    sparse_values = numpy_helper.from_array(np.ones(1, np.float32), "s")
    sparse = helper.make_sparse_tensor(sparse_values, numpy_helper.from_array(np.array([0], np.int64), "s_places"), [2])
    proto = model(
        [helper.make_node("Sum", ["x", "w", "s"], ["y"])],
        [value("w", (2,)), value("x", ("n", 2)), value("s", (2,))],
        [value("y", ("n", 2))],
        [weight],
        ir_version=ir_version,
    )
    proto.graph.sparse_initializer.append(sparse)
    assert [tensor.name for tensor in read(tmp_path, proto).inputs] == ["x"]


def test_kinds_other_than_tensors_are_distinguished(tmp_path: Path) -> None:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [1])
    outputs = [
        helper.make_value_info("sequence", helper.make_sequence_type_proto(tensor)),
        helper.make_value_info("optional", helper.make_optional_type_proto(tensor)),
        helper.make_value_info("map", helper.make_map_type_proto(TensorProto.INT64, tensor)),
        helper.make_value_info("sparse", helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [1])),
        onnx.ValueInfoProto(name="untyped"),
    ]
    found = read(tmp_path, model([], [value("x", (1,))], outputs))
    assert [output.kind for output in found.outputs] == ["sequence", "optional", "map", "sparse tensor", "untyped"]


def test_external_tensors_are_found_at_every_position(tmp_path: Path) -> None:
    subgraph = helper.make_graph([], "branch", [], [], [external("in_subgraph")])
    deep = helper.make_graph([helper.make_node("If", ["c"], ["y"], then_branch=subgraph)], "outer", [], [])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=external("in_attribute")),
        helper.make_node("If", ["c"], ["y"], else_branch=deep),
    ]
    many = onnx.AttributeProto(name="many", type=onnx.AttributeProto.TENSORS)
    many.tensors.append(external("in_list"))
    graphs = onnx.AttributeProto(name="graphs", type=onnx.AttributeProto.GRAPHS)
    graphs.graphs.append(helper.make_graph([], "one_of", [], [], [external("in_graph_list")]))
    sparse = onnx.AttributeProto(name="sparse", type=onnx.AttributeProto.SPARSE_TENSOR)
    sparse.sparse_tensor.values.CopyFrom(external("in_sparse_attribute"))
    nodes[0].attribute.extend([many, graphs, sparse])
    proto = model(nodes, [], [value("y", (1,))], [external("initializer", offset="8", length="12")])
    proto.graph.sparse_initializer.append(onnx.SparseTensorProto(values=external("sparse_values"), indices=external("sparse_places")))
    proto.functions.append(
        helper.make_function("d", "f", [], ["y"], [helper.make_node("Constant", [], ["y"], value=external("in_function"))], [])
    )
    proto.training_info.add().algorithm.initializer.append(external("in_training"))
    found = {tensor.name: tensor for tensor in read(tmp_path, proto).external}
    assert set(found) == {
        "in_subgraph", "in_attribute", "in_list", "in_graph_list", "in_sparse_attribute", "initializer", "sparse_values", "sparse_places",
        "in_function", "in_training",
    }  # fmt: skip
    assert found["initializer"] == ExternalTensor("initializer", "weights.bin", 8, 12)


def test_every_message_that_can_contain_a_tensor_is_known() -> None:
    """The table of positions equals onnx.proto's, for every installed release of onnx."""
    reachable = {"TensorProto"}
    kinds = {
        name: message
        for name, message in onnx.onnx_ml_pb2.DESCRIPTOR.message_types_by_name.items()
        if name not in ("ModelProto", "TypeProto", "ValueInfoProto")
    }
    while True:
        more = {
            name for name, message in kinds.items() if any(f.message_type and f.message_type.name in reachable for f in message.fields)
        } - reachable
        if not more:
            break
        reachable |= more
    expected = {
        name: {f.number: f.message_type.name for f in kinds[name].fields if f.message_type and f.message_type.name in reachable}
        for name in reachable - {"TensorProto"}
    }
    assert expected == TENSOR_HOLDERS


def test_element_types_equal_those_of_onnx() -> None:
    names = TensorProto.DataType
    assert {number: ONNX_TYPES[datatype] for number, datatype in SERVED.items()} == {number: number for number in SERVED}
    assert set(SERVED.values()) == set(DataType)
    others = {number: names.Name(number) for number in names.values() if number not in SERVED and number != TensorProto.UNDEFINED}
    assert {number: element_name(number) for number in others} == others
    assert element_name(99) == "number 99"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n", "git lfs pull"),
        (b"<html>not found</html>", "truncated, corrupt or not ONNX"),
        (b"\x08\x0a", "no graph"),
        (b"\x3a\x00", "no IR version"),
        (b"\x08\x0a\x3a\x05", "field 7 at byte 2 should reach to byte 9, but the file ends at byte 4"),
        (b"\x08" + b"\xff" * 11, "longer than ten bytes"),
        (b"\x0b", "wire type 3"),
        (b"\x02\x00", "field number 0"),
        (b"\x38\x01", "should be a message"),
        (b"\x12\x02\xff\xfe", "not UTF-8"),
    ],
)
def test_file_that_is_not_a_model_is_refused_with_the_reason(tmp_path: Path, content: bytes, text: str) -> None:
    with pytest.raises(UnreadableOnnx) as caught:
        read(tmp_path, content)
    assert text in str(caught.value)


def test_file_above_protobufs_limit_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(UnreadableOnnx, match="external data"):
        read_onnx_file(path)


def test_field_that_exceeds_its_message_is_corrupt(tmp_path: Path) -> None:
    with pytest.raises(UnreadableOnnx, match=r"field 2 at byte 4 should reach to byte 15, but its message ends at byte 6"):
        read(tmp_path, b"\x08\x0a\x42\x02\x12\x09" + b"\x3a\x00" + b"\x32\x08--------")


def test_every_truncation_of_a_model_is_detected(tmp_path: Path) -> None:
    whole = identity().SerializeToString()
    graph_at = whole.index(b"\x3a")
    for size in range(graph_at + 1):
        with pytest.raises(UnreadableOnnx):
            read(tmp_path, whole[:size])


def nested(levels: int) -> bytes:
    """A model of subgraphs within subgraphs, with an external tensor at the bottom. Built by hand: onnx itself cannot write it."""

    def wrap(number: int, payload: bytes) -> bytes:
        size, length = len(payload), b""
        while size > 127:
            length += bytes([size & 127 | 128])
            size >>= 7
        return bytes([number << 3 | 2]) + length + bytes([size]) + payload

    graph = wrap(5, external("deep").SerializeToString())
    for _ in range(levels):
        graph = wrap(1, wrap(5, wrap(6, graph)))
    return b"\x08\x0a" + wrap(7, graph)


def test_subgraphs_are_followed_to_protobufs_depth_limit(tmp_path: Path) -> None:
    assert [tensor.name for tensor in read(tmp_path, nested(32)).external] == ["deep"]


@pytest.mark.parametrize("levels", [34, 5000])
def test_deeper_nesting_is_refused(tmp_path: Path, levels: int) -> None:
    with pytest.raises(UnreadableOnnx, match="nested more than 100 deep"):
        read(tmp_path, nested(levels))


def test_number_of_fields_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.backends.onnx_files.model_file.MAX_FIELDS", 50)
    tensor = b"\x20\x01" * 100
    with pytest.raises(UnreadableOnnx, match="more than 50 fields"):
        read(tmp_path, b"\x08\x0a\x3a" + bytes([len(tensor) + 3 & 127 | 128, (len(tensor) + 3) >> 7]) + b"\x2a\xc8\x01" + tensor)


@pytest.mark.parametrize("text", ["-1", "1e3", "", "99999999999999999999"])
def test_offset_that_is_not_a_number_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UnreadableOnnx, match="expected a number"):
        read(tmp_path, model([], [], [], [external("w", offset=text)]))


def test_every_location_of_a_tensor_with_several_is_reported(tmp_path: Path) -> None:
    tensor = external("w", "inside.bin")
    tensor.external_data.add(key="location", value="../outside.bin")
    assert [t.location for t in read(tmp_path, model([], [], [], [tensor])).external] == ["inside.bin", "../outside.bin"]


@given(cuts=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=6), keep=st.floats(0.3, 1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
def test_damaged_file_is_read_or_refused(tmp_path: Path, cuts: list[tuple[float, int]], keep: float) -> None:
    data = bytearray(model([], [value("x", ("n", 2))], [value("y", (1,))], [external("w", offset="1")]).SerializeToString())
    for place, byte in cuts:
        data[int(place * (len(data) - 1))] = byte
    try:
        found = read(tmp_path, bytes(data[: max(1, int(keep * len(data)))]))
    except UnreadableOnnx:
        return
    assert found.ir_version > 0
