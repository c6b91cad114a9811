"""Boxes: from the network's values to pixels of the picture, and the client and the network around that."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from tests.fakes.example_scripts import example

client = example("yolov5s/client.py")
detection = example("yolov5s/detection.py")
build = example("yolov5s/build.py")

SIDE = 64
LABELS = ["cat", "dog"]


def head(stride: int, **planted: tuple[int, int, int, np.ndarray]) -> np.ndarray:
    """A raw head for two classes that detects only the planted boxes: (anchor, row, column, values)."""
    cells = SIDE // stride
    values = np.full((3, cells, cells, 7), -20, np.float32)
    for anchor, row, column, property_values in planted.values():
        values[anchor, row, column] = property_values
    return values


def logit(probability: float) -> float:
    return float(np.log(probability / (1 - probability)))


def test_cell_gives_position_and_size_of_its_box() -> None:
    # Anchor 1 of stride 16 is 62x45. Values of 0 put the centre in the middle of the cell and keep the anchor's size.
    decoded = detection.decode([head(16, one=(1, 2, 3, np.array([0, 0, 0, 0, 5, 5, -5])))], SIDE)
    box = decoded[decoded[:, 4].argmax()]
    np.testing.assert_allclose(box[:4], [16 * 3.5, 16 * 2.5, 62, 45], rtol=1e-6)
    np.testing.assert_allclose(box[4:], 1 / (1 + np.exp([-5, -5, 5])), rtol=1e-5)


def test_three_forms_of_a_head_are_equal() -> None:
    rng = np.random.default_rng(3)
    heads = [rng.standard_normal((3, SIDE // stride, SIDE // stride, 7)).astype(np.float32) for stride in (8, 16, 32)]
    decoded = detection.decode(heads, SIDE)
    assert decoded.shape == (3 * (64 + 16 + 4), 7)
    channels = [each.transpose(0, 3, 1, 2).reshape(21, each.shape[1], each.shape[2]) for each in heads]
    np.testing.assert_array_equal(detection.decode(channels, SIDE), decoded)
    np.testing.assert_array_equal(detection.decode([decoded, *heads], SIDE), decoded)


@pytest.mark.parametrize("shape", [(3, 8, 4, 7), (3, 5, 5, 7), (3, 16, 16, 7), (2, 8, 8, 7), (20, 8, 8), (3, 8, 8, 5), (7,)])
def test_output_that_is_not_a_head_is_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="output of shape"):
        detection.decode([np.zeros(shape, np.float32)], SIDE)


def test_extreme_values_do_not_overflow() -> None:
    np.testing.assert_array_equal(detection.sigmoid(np.array([-1e4, 0, 1e4], np.float32)), [0, 0.5, 1])


@pytest.mark.parametrize(
    ("size", "corner", "scaled"), [((128, 64), (0, 16), (64, 32)), ((10, 40), (24, 0), (16, 64)), ((64, 64), (0, 0), (64, 64))]
)
def test_picture_is_centred_on_grey(size, corner, scaled) -> None:
    letterbox = detection.Letterbox(size, SIDE)
    assert (letterbox.corner, letterbox.scaled) == (corner, scaled)
    pixels = letterbox.pixels(Image.new("RGB", size, "white"))
    assert pixels.shape == (SIDE, SIDE, 3)
    assert (pixels == 1).sum() == 3 * scaled[0] * scaled[1]
    assert set(np.unique(pixels)) <= {np.float32(1), np.float32(114) / np.float32(255)}


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(1, 3000))
def test_boxes_map_back_to_any_picture(width: int, height: int) -> None:
    letterbox = detection.Letterbox((width, height), 640)
    (left, top), (wide, high) = letterbox.corner, letterbox.scaled
    whole = letterbox.on_picture(np.array([[left, top, left + wide, top + high]], np.float32))[0]
    np.testing.assert_allclose(whole, [0, 0, width, height], atol=0.51 / letterbox.scale)


def found(decoded: list[list[float]], **options) -> list:
    chosen = {"confidence": 0.25, "overlap": 0.45, **options}
    return detection.detections(np.array(decoded, np.float32), detection.Letterbox((128, 64), SIDE), **chosen)


def test_box_covered_by_a_more_confident_one_of_its_class_is_dropped() -> None:
    boxes = [
        [20, 32, 10, 10, 0.9, 0.9, 0.1],
        [21, 32, 10, 10, 0.9, 0.8, 0.1],
        [20, 32, 10, 10, 0.9, 0.1, 0.8],
        [50, 32, 10, 10, 0.9, 0.7, 0.1],
    ]
    kept = found(boxes)
    assert [(each.category, round(each.score, 2)) for each in kept] == [(0, 0.81), (1, 0.72), (0, 0.63)]
    assert kept[0].box == (30.0, 22.0, 50.0, 42.0)
    assert len(found(boxes, overlap=1.0)) == 4
    assert len(found(boxes, most=2)) == 2


def test_unlikely_tiny_and_outlying_boxes_are_dropped() -> None:
    assert (
        found([[20, 32, 10, 10, 0.9, 0.2, 0.1], [20, 32, 10, 10, 0.2, 0.9, 0.9], [20, 32, 1, 10, 1, 1, 0], [20, 4, 10, 4, 1, 1, 0]]) == []
    )
    assert detection.detections(np.zeros((0, 7), np.float32), detection.Letterbox((1, 1), SIDE), confidence=0.1, overlap=0.5) == []


@given(st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_no_two_kept_boxes_of_a_class_overlap_more_than_allowed(seed: int, overlap: float) -> None:
    rng = np.random.default_rng(seed)
    corner = rng.random((40, 2)) * 50
    boxes = np.concatenate([corner, corner + 5 + rng.random((40, 2)) * 30], axis=1)
    category = rng.integers(0, 2, 40)
    kept = detection.suppressed(boxes, category, overlap, 100)
    assert kept[0] == 0
    for first, second in ((a, b) for a in kept for b in kept if a < b and category[a] == category[b]):
        shared = np.clip(np.minimum(boxes[first, 2:], boxes[second, 2:]) - np.maximum(boxes[first, :2], boxes[second, :2]), 0, None).prod()
        union = sum((boxes[at, 2:] - boxes[at, :2]).prod() for at in (first, second)) - shared
        assert shared <= overlap * union + 1e-9


def planted_model() -> bytes:
    """Returns three heads that detect one dog in any picture: in cell (row 1, column 2) of stride 16, of anchor 2 (59x119)."""
    values = np.array([0, 0, logit(0.25), logit(0.25), logit(0.99), logit(0.01), logit(0.9)], np.float32)
    heads = {"head_8": head(8), "head_16": head(16, dog=(2, 1, 2, values)), "head_32": head(32)}
    nodes, weights = [], []
    zero = numpy_helper.from_array(np.array(0, np.float32), "zero")
    nodes += [
        helper.make_node("ReduceMean", ["images"], ["mean"], axes=[1, 2, 3], keepdims=1),
        helper.make_node("Mul", ["mean", "zero"], ["none"]),
    ]
    for name, array in heads.items():
        weights.append(numpy_helper.from_array(array[np.newaxis], f"{name}_values"))
        nodes += [
            helper.make_node("Unsqueeze", ["none", "axis"], [f"{name}_none"]),
            helper.make_node("Add", [f"{name}_none", f"{name}_values"], [name]),
        ]
    axis = numpy_helper.from_array(np.array([4], np.int64), "axis")
    graph = helper.make_graph(
        nodes,
        "planted",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *array.shape]) for name, array in heads.items()],
        [zero, axis, *weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


@pytest.mark.parametrize(("size", "protocol"), [(1, "grpc"), (2, "http")])
def test_client_draws_the_boxes_of_the_network(served, pictures: Path, tmp_path: Path, capsys, size: int, protocol: str) -> None:
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    server = served(planted_model(), "yolov5s")
    options = ["-b", str(size), "-u", server.url(protocol), "-i", protocol, "--labels", str(tmp_path / "labels.txt")]
    client.main([*options, "-o", str(tmp_path / "boxes"), "--json", str(tmp_path / "found.json"), str(pictures)])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("Image")] == [
        f"Image: '{pictures / name}.png', 1 box, drawn in '{tmp_path / 'boxes' / name}.png'" for name in ("a_red", "b_lime", "c_blue")
    ]
    # Centre (40, 24) and 59/4 by 119/4 in the square; the picture of 60x40 lies there at (0, 10), larger by 64/60.
    left, top = (40 - 59 / 8) * 60 / 64, max(0.0, (24 - 119 / 8 - 10) * 60 / 64)
    right, bottom = (40 + 59 / 8) * 60 / 64, (24 + 119 / 8 - 10) * 60 / 64
    results = json.loads((tmp_path / "found.json").read_text())
    assert len(results) == 3
    assert results[0]["image_id"] == "a_red"
    assert results[0]["category_id"] == 1
    assert results[0]["score"] == pytest.approx(0.891, abs=1e-4)
    assert results[0]["bbox"] == pytest.approx([left, top, right - left, bottom - top], abs=1e-2)
    with Image.open(tmp_path / "boxes" / "c_blue.png") as drawn:
        assert drawn.size == (60, 40)
        assert drawn.getpixel((round(left), 24)) != (0, 0, 255)
        assert drawn.getpixel((5, 35)) == (0, 0, 255)


def test_labels_for_another_number_of_classes_are_refused(served, pictures: Path, tmp_path: Path) -> None:
    server = served(planted_model(), "yolov5s")
    with pytest.raises(SystemExit, match="tells 2 classes apart, there are labels for 80"):
        client.main(["-u", server.grpc_url, "-o", str(tmp_path), str(pictures)])


def test_model_without_a_square_picture_input_is_refused(served, pictures: Path, tmp_path: Path) -> None:
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3, 32, 64]) for name in ("images", "copy")]
    graph = helper.make_graph([helper.make_node("Identity", ["images"], ["copy"])], "wide", tensors[:1], tensors[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    server = served(model.SerializeToString(), "yolov5s")
    with pytest.raises(SystemExit, match=r"dims \[3, 32, 64\], expected those of one square picture"):
        client.main(["-u", server.grpc_url, "-o", str(tmp_path), str(pictures)])


def test_each_of_cocos_80_classes_has_a_label() -> None:
    labels = client.LABELS.read_text().splitlines()
    assert (len(labels), labels[0], labels[-1]) == (80, "person", "toothbrush")
    assert (len(client.CATEGORIES), client.CATEGORIES[11], client.CATEGORIES[-1]) == (80, 13, 90)


@pytest.mark.slow
def test_network_has_the_published_number_of_weights() -> None:
    network = build.Yolov5s(seed=0, side=SIDE)
    model = network.build()
    assert network.parameters == 7_225_885
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    heads = session.run(list(build.HEADS), {"images": np.stack([build.scene(SIDE), np.zeros((3, SIDE, SIDE), np.float32)])})
    assert [each.shape for each in heads] == [(2, 3, cells, cells, 85) for cells in (8, 4, 2)]
    # On the picture that they were scaled by, the heads' values are as they were meant to be.
    assert heads[0][0, ..., 4].mean() == pytest.approx(build.OBJECTNESS[0], abs=1e-2)
    assert heads[0][0, ..., 4].std(axis=(1, 2)) == pytest.approx([build.OBJECTNESS[1]] * 3, abs=1e-2)
    assert heads[0][0, ..., :4].mean() == pytest.approx(build.BOX[0], abs=1e-2)


@pytest.mark.slow
def test_builder_writes_a_folder_that_can_be_served(tmp_path: Path, capsys) -> None:
    build.main(["--repository", str(tmp_path), "--side", "64", "--max-batch-size", "3", "--version", "2"])
    assert capsys.readouterr().out == f"wrote {tmp_path / 'yolov5s' / '2' / 'model.onnx'}, 29 MB\n"
    config = (tmp_path / "yolov5s" / "config.pbtxt").read_text()
    assert 'input { name: "images" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 64, 64 ] }' in config
    assert 'output { name: "head_32" data_type: TYPE_FP32 dims: [ 3, 2, 2, 85 ] }' in config
    assert "max_batch_size: 3" in config
