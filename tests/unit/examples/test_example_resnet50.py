"""The client that classifies pictures: its requests, its output, its refusals."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from stoker.server.pb.adlik import model_pb2
from tests.fakes.example_scripts import example

client = example("resnet50/client.py")
normalised = example("normalised_pictures.py")


def colour_model(layout: str = "NCHW") -> bytes:
    """Classifies a picture of 32x32 by its strongest colour."""
    dims, axes = ([3, 32, 32], [2, 3]) if layout == "NCHW" else ([32, 32, 3], [1, 2])
    node = helper.make_node("ReduceMean", ["data"], ["scores"], axes=axes, keepdims=0)
    graph = helper.make_graph(
        [node],
        "colours",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, ["batch", *dims])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 3])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


@pytest.mark.parametrize(("size", "protocol"), [(1, "grpc"), (2, "grpc"), (4, "http")])
def test_lines_equal_those_of_adliks_client(served, pictures: Path, tmp_path: Path, capsys, size: int, protocol: str) -> None:
    server = served(colour_model(), "resnet50")
    (tmp_path / "labels.txt").write_text("0 red\n1 green\n2 blue\n")
    (tmp_path / "truth.txt").write_text("a_red.png 0\nb_lime.png 1\n\nc_blue.png 0\n")
    options = ["-b", str(size), "-u", server.url(protocol), "-i", protocol, "-t", str(tmp_path / "truth.txt")]
    client.main([*options, str(pictures), str(tmp_path / "labels.txt")])
    *lines, accuracy = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"Image: '{pictures / 'a_red.png'}', result: [{{'idx': 0, 'score': 2.2")
    assert [line.rsplit("'label': ")[1] for line in lines] == ["'0 red'}]", "'1 green'}]", "'2 blue'}]"]
    assert accuracy == f"ACC: 2 of 3 is {2 / 3 * 100}% "
    assert [request.batch_size for request in server.requests] == [size] * -(-3 // size)


def test_best_classes_have_the_servers_labels(served, pictures: Path, capsys) -> None:
    server = served(colour_model("NHWC"), "mine", layout=model_pb2.ModelInput.FORMAT_NHWC)
    client.main(["-m", "mine", "-c", "2", "-u", server.grpc_url, str(pictures / "b_lime.png")])
    line = capsys.readouterr().out
    assert line.count("'idx'") == 2
    assert "'label': 'label 1'" in line


def test_sample_photographs_are_the_default_input(served, capsys) -> None:
    client.main(["-u", served(colour_model(), "resnet50").grpc_url])
    first, second = capsys.readouterr().out.splitlines()
    assert "china.jpg" in first
    assert "flower.jpg" in second


def test_picture_is_scaled_cropped_and_normalised() -> None:
    picture = Image.new("RGB", (512, 256), "black")
    picture.paste("white", (144, 16, 368, 240))  # just the middle 224x224
    pixels = normalised.preprocess(picture)
    assert pixels.shape == (224, 224, 3)
    assert pixels.dtype == np.float32
    np.testing.assert_allclose(pixels, np.broadcast_to((1 - normalised.MEAN) / normalised.DEVIATION, pixels.shape), rtol=1e-6)


@pytest.mark.parametrize("size", [(100, 300), (300, 100), (7, 9), (224, 224)])
def test_pictures_of_any_size_are_resized_to_the_networks(size: tuple[int, int]) -> None:
    assert normalised.preprocess(Image.new("RGB", size), 64).shape == (64, 64, 3)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nowhere.png"], "nowhere.png does not exist"),
        (["{folder}"], "holds no picture"),
        (["{folder}/README.txt"], "cannot identify image file"),
        (["-t", "{truth}", "{picture}"], "does not tell the class of a_red.png"),
        (["-t", "{bad}", "{picture}"], "line 1: 'a_red.png' is not a file name and the number of a class"),
        (["{picture}", "{bad}"], "has 1 lines, none for class"),
        (["-b", "5", "{picture}"], "-b 5: model 'resnet50' takes batches of at most 4"),
        (["-m", "other", "{picture}"], "Model not found: other"),
    ],
)
def test_errors_are_one_line(served, pictures: Path, tmp_path: Path, arguments: list[str], text: str) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "README.txt").write_text("no picture")
    (tmp_path / "truth.txt").write_text("b_lime.png 1\n")
    (tmp_path / "bad.txt").write_text("a_red.png\n")
    known = {"folder": empty, "truth": tmp_path / "truth.txt", "bad": tmp_path / "bad.txt", "picture": pictures / "b_lime.png"}
    if "-t" in arguments:
        known["picture"] = pictures / "a_red.png"
    server = served(colour_model(), "resnet50")
    with pytest.raises(SystemExit, match=text) as caught:
        client.main(["-u", server.grpc_url, *(word.format(**known) for word in arguments)])
    assert "\n" not in str(caught.value)


def test_missing_server_is_named(pictures: Path) -> None:
    with pytest.raises(SystemExit, match=r"^127\.0\.0\.1:1: "):
        client.main(["-u", "127.0.0.1:1", str(pictures)])


@pytest.mark.slow
def test_network_has_the_weights_of_a_resnet_50() -> None:
    model = example("resnet50/build.py").ResNet50(0).build()
    learned = [weight for weight in model.graph.initializer if not weight.name.endswith(("_mean", "_variance"))]
    assert sum(int(np.prod(weight.dims)) for weight in learned) == 25_557_032
    onnx.checker.check_model(model)
    dense = next(weight for weight in learned if weight.name == "dense_w")
    assert numpy_helper.to_array(dense).std() == pytest.approx(2048**-0.5, rel=0.01)


def test_batches_are_full_and_no_picture_is_counted_twice() -> None:
    batches = list(example("full_batches.py").full_batches("abcde", 3))
    assert batches == [(["a", "b", "c"], 3), (["d", "e", "a"], 2)]
    assert list(example("full_batches.py").full_batches("a", 3)) == [(["a", "a", "a"], 1)]


@pytest.mark.parametrize(("protocol", "address"), [("grpc", "localhost:8500"), ("http", "localhost:8501")])
def test_default_address_is_the_port_of_each_protocol(protocol: str, address: str, pictures: Path, monkeypatch) -> None:
    def connect(model_name: str, *, url: str, **_options: object) -> None:
        raise ValueError(f"asked {url}")

    monkeypatch.setattr("adlik_options.PredictContext", connect)
    with pytest.raises(SystemExit, match=f"^{address}: asked {address}$"):
        client.main(["-i", protocol, str(pictures)])
