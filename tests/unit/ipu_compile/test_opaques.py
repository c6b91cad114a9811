import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.ipu.opaques import (
    ConcatenatedInput,
    FusedAnchor,
    FusedGraph,
    FusionMap,
    HostConcat,
    OpaqueError,
    dump_facts,
    load_facts,
)

MAP = FusionMap(
    graphs=(
        FusedGraph(
            index=0,
            name="graph0",
            model="bert",
            inputs=(FusedAnchor(anchor="graph0/stream0", tensor="ids", aliases=("graph0/ids",), shape=(1, 128), dtype="int32"),),
            outputs=(FusedAnchor(anchor="graph0/logits", tensor="logits", shape=(1, 2)),),
        ),
    )
)
CONCAT = HostConcat(
    inputs=(ConcatenatedInput(tensor_name="all", input_tensor_names=("a", "b"), shape=(2, 3), dtype="int32", data_size_bytes=24),)
)


def test_written_opaques_are_read_back_equal() -> None:
    assert FusionMap.from_bytes(MAP.to_bytes()) == MAP
    assert HostConcat.from_bytes(CONCAT.to_bytes()) == CONCAT
    assert load_facts("stoker", dump_facts({"a": 1, "b": "c"})) == {"a": 1, "b": "c"}


def test_same_facts_give_the_same_bytes() -> None:
    assert dump_facts({"b": 1, "a": 2}) == dump_facts({"a": 2, "b": 1})


def test_another_version_is_refused() -> None:
    content = json.loads(MAP.to_bytes()) | {"version": 2}
    with pytest.raises(OpaqueError, match="version 2, this build reads 1"):
        FusionMap.from_bytes(json.dumps(content).encode())


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("graphs",), {}, r"'graphs' is \{\}, expected a list"),
        (("graphs", 0, "index"), -1, r"model_fusion.graphs\[0\]': 'index' is -1, expected a whole number from 0"),
        (("graphs", 0, "index"), True, "expected a whole number"),
        (("graphs", 0, "name"), None, "'name' is None, expected a string"),
        (("graphs", 0, "inputs", 0), "x", "'inputs' .* expected a list of objects"),
        (("graphs", 0, "inputs", 0, "shape"), [1, "2"], r"graphs\[0\].inputs\[0\]': 'shape' .* expected a list of whole numbers"),
        (("graphs", 0, "outputs", 0, "aliases"), [1], "'aliases' .* expected a list of strings"),
    ],
)
def test_wrong_field_is_named_with_its_position(path, value, text) -> None:
    content = json.loads(MAP.to_bytes())
    at = content
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(OpaqueError, match=text):
        FusionMap.from_bytes(json.dumps(content).encode())


@given(
    st.binary(max_size=40)
    | st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner)).map(lambda v: json.dumps(v).encode())
)
def test_invalid_content_is_an_opaque_error(data) -> None:
    for read in (FusionMap.from_bytes, HostConcat.from_bytes):
        with pytest.raises(OpaqueError):
            read(data)


def test_deep_nesting_is_an_opaque_error() -> None:
    with pytest.raises(OpaqueError):
        FusionMap.from_bytes(b"[" * 100_000)
