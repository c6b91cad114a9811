"""Graphs whose weights are outside them."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from stoker.backends.simulated.numerics import GraphRunner, NumericsError


def graph(rows: int, *names: str) -> bytes:
    """y = x * w + s, where `names` are declared as external data."""
    initializers = []
    for name in names:
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[3] if name == "w" else [], data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="weights")
        initializers.append(tensor)
    nodes = [helper.make_node("Mul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "s"], ["y"])]
    border = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 3]) for name in ("x", "y")]
    made = helper.make_graph(nodes, "g", border[:1], border[1:], initializers)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    assert isinstance(model, onnx.ModelProto)
    return model.SerializeToString()


WEIGHTS = {"w": np.array([1, 2, 3], np.float32), "s": np.array(10, np.float32)}


def test_several_graphs_share_weights_including_scalars() -> None:
    for rows in (1, 4):
        runner = GraphRunner(graph(rows, "w", "s"), weights=WEIGHTS)
        found = runner.run({"x": np.ones((rows, 3), np.float32)}, ["y"])["y"]
        assert found.tolist() == [[11.0, 12.0, 13.0]] * rows


def test_weights_may_be_read_only_and_non_contiguous() -> None:
    strided = np.arange(6, dtype=np.float32)[::2]
    strided.flags.writeable = False
    runner = GraphRunner(graph(1, "w", "s"), weights={**WEIGHTS, "w": strided})
    assert runner.run({"x": np.ones((1, 3), np.float32)}, ["y"])["y"].tolist() == [[10.0, 12.0, 14.0]]


@pytest.mark.parametrize(
    "weights",
    [{"w": WEIGHTS["w"]}, {**WEIGHTS, "other": WEIGHTS["w"]}, {**WEIGHTS, "w": np.ones(4, np.float32)}],
    ids=["missing", "unknown", "another shape"],
)
def test_weights_that_contradict_the_graph_are_refused(weights: dict[str, np.ndarray]) -> None:
    with pytest.raises(NumericsError, match="the lowered graph cannot be prepared"):
        GraphRunner(graph(1, "w", "s"), weights=weights)


@pytest.mark.parametrize("location", ["secret.bin", "../{folder}/secret.bin"])
def test_no_graph_reads_a_file_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str) -> None:
    (tmp_path / "secret.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    monkeypatch.chdir(tmp_path)
    weight = TensorProto(name="w", data_type=TensorProto.UINT8, dims=[16], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location.format(folder=tmp_path.name), "offset": "0", "length": "16"}.items():
        weight.external_data.add(key=key, value=value)
    shown = helper.make_tensor_value_info("y", TensorProto.UINT8, [16])
    made = helper.make_graph([helper.make_node("Identity", ["w"], ["y"])], "g", [], [shown], [weight])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    with pytest.raises(NumericsError, match="the lowered graph cannot be prepared"):
        GraphRunner(model.SerializeToString())
