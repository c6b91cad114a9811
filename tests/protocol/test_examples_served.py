"""The example clients against a real server: models of the examples on ONNX Runtime, and the same ones compiled for a simulated GCU."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stoker_client.adlik import PredictContext
from tests.fakes.server_process import PATIENCE_S, REPOSITORY_ROOT, ServerProcess, running_server

#: The fixtures compile models, one command each, before their first test.
pytestmark = [pytest.mark.protocol, pytest.mark.timeout(300)]

EXAMPLES = REPOSITORY_ROOT / "examples"
SMALL_YOLO = ("--side", "64", "--max-batch-size", "4")
SMALL_BERT = ("--layers", "2", "--hidden", "64", "--heads", "2", "--vocabulary", "600", "--sequence", "64", "--max-batch-size", "4")


def run(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def compiled(source: Path, repository: Path, name: str, batch_sizes: str) -> None:
    """`<name>_gcu`: the model compiled for a GCU."""
    words = [
        "-m",
        "stoker.cli.main",
        "compile",
        "--target",
        "gcu",
        "-i",
        str(source / name / "1" / "model.onnx"),
        "--batch_sizes",
        batch_sizes,
    ]
    run(*words, "--model_repository", str(repository), "--model_name", f"{name}_gcu", "--output_dir", str(repository.parent))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("examples")
    repository = folder / "models"
    run(str(EXAMPLES / "yolov5s/build.py"), "--repository", str(repository), *SMALL_YOLO)
    run(str(EXAMPLES / "bert/build.py"), "--repository", str(repository), *SMALL_BERT)
    for name in ("yolov5s", "bert"):
        compiled(repository, repository, name, "1,4")
    with running_server(f"--model_base_path={repository}", "--settle-secs=0", at=folder) as started:
        yield started


@pytest.fixture(params=["grpc", "http"])
def where(request: pytest.FixtureRequest, server: ServerProcess) -> list[str]:
    return ["-i", request.param, "-u", server.grpc if request.param == "grpc" else server.http]


@pytest.mark.parametrize("model", ["yolov5s", "yolov5s_gcu"])
def test_yolov5s_client_draws_boxes(where: list[str], model: str, tmp_path: Path) -> None:
    out = run(str(EXAMPLES / "yolov5s/client.py"), *where, "-m", model, "-b", "2", "-o", str(tmp_path), "--confidence", "0.01")
    assert out.count("Image: ") == 2
    assert len(out.splitlines()) > 4
    assert {path.name for path in tmp_path.iterdir()} == {"china.png", "flower.png"}


def test_bert_client_gets_the_same_spans_from_the_device(where: list[str]) -> None:
    answers = [run(str(EXAMPLES / "bert/client.py"), *where, "-m", name, "-b", "3") for name in ("bert", "bert_gcu")]
    assert answers[0].count("Question: ") == 3
    assert answers[0] == answers[1]


@pytest.mark.parametrize("model", ["yolov5s", "bert"])
@pytest.mark.parametrize("batch", [1, 3])
def test_device_equals_onnx_runtime(server: ServerProcess, model: str, batch: int) -> None:
    rng = np.random.default_rng(4)
    with PredictContext(model, url=server.grpc) as source, PredictContext(f"{model}_gcu", url=server.grpc) as card:
        inputs = {}
        for tensor in source.model_config.input:
            shape = (batch, *tensor.dims)
            inputs[tensor.name] = rng.random(shape, dtype=np.float32) if model == "yolov5s" else rng.integers(0, 2, shape)
        wanted, found = source.run(inputs), card.run(inputs)
    assert wanted.keys() == found.keys()
    for name, output in wanted.items():
        np.testing.assert_allclose(found[name].tensor, output.tensor, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_full_resnet_50_classifies_photographs(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    run(str(EXAMPLES / "resnet50/build.py"), "--repository", str(repository), "--max-batch-size", "2")
    compiled(repository, repository, "resnet50", "1,2")
    truth = tmp_path / "truth.txt"
    with running_server(f"--model_base_path={repository}", "--settle-secs=0", at=tmp_path) as started:
        for url, protocol in ((started.grpc, "grpc"), (started.http, "http")):
            with PredictContext("resnet50", url=url, protocol=protocol) as context:
                assert list(context.model_config.input[0].dims) == [3, 224, 224]
            command = [str(EXAMPLES / "resnet50/client.py"), "-i", protocol, "-u", url, "-b", "2", "-c", "3"]
            lines = [run(*command, "-m", name).splitlines() for name in ("resnet50", "resnet50_gcu")]
            classes = [[line.partition("'idx': ")[2].partition(",")[0] for line in each] for each in lines]
            assert classes[0] == classes[1]
            assert len(classes[0]) == 2
        truth.write_text(f"china.jpg {classes[0][0]}\nflower.jpg 1000\n")
        assert run(*command, "-m", "resnet50_gcu", "-t", str(truth)).splitlines()[-1] == "ACC: 1 of 2 is 50.0% "


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The trained models, each with the same one compiled for a GCU beside it."""
    folder = tmp_path_factory.mktemp("trained")
    repository = folder / "models"
    shutil.copytree(EXAMPLES / "models", repository)
    for name in ("shapes", "digit_detector", "passages"):
        compiled(repository, repository, name, "1,4")
    with running_server(f"--model_base_path={repository}", "--settle-secs=0", at=folder) as started:
        yield started


@pytest.fixture(params=["grpc", "http"])
def trained_at(request: pytest.FixtureRequest, trained: ServerProcess) -> list[str]:
    return ["-i", request.param, "-u", trained.grpc if request.param == "grpc" else trained.http]


@pytest.mark.parametrize("suffix", ["", "_gcu"])
def test_trained_classifier_prints_the_right_label_of_each_picture(trained_at: list[str], suffix: str) -> None:
    pictures = EXAMPLES / "shapes" / "pictures"
    command = [str(EXAMPLES / "resnet50/client.py"), *trained_at, "-m", f"shapes{suffix}", "-b", "4", "-t", str(pictures / "truth.txt")]
    *lines, accuracy = run(*command, str(pictures), str(EXAMPLES / "models/shapes/labels.txt")).splitlines()
    assert accuracy == "ACC: 12 of 12 is 100.0% "
    assert all(f"'label': '{file.stem}'" in line for line, file in zip(lines, sorted(pictures.glob("*.jpeg")), strict=True))


@pytest.mark.parametrize("suffix", ["", "_gcu"])
def test_trained_detector_finds_the_digits_of_each_picture(trained_at: list[str], suffix: str, tmp_path: Path) -> None:
    pictures, truth = EXAMPLES / "digit_detector" / "pictures", EXAMPLES / "digit_detector" / "pictures" / "truth.json"
    command = [str(EXAMPLES / "yolov5s/client.py"), *trained_at, "-m", f"digit_detector{suffix}", "-b", "2", "-o", str(tmp_path)]
    command += ["--labels", str(EXAMPLES / "models/digit_detector/labels.txt"), "--truth", str(truth)]
    out, _, scores = run(*command, str(pictures)).rstrip("\n").rpartition("\n")
    digits = [sorted(int(line.split()[0]) for line in block.splitlines()[1:]) for block in out.split("Image: ")[1:]]
    wanted: list[list[int]] = [[] for _ in pictures.glob("*.jpeg")]
    for each in json.loads(truth.read_text())["annotations"]:
        wanted[each["image_id"]].append(each["category_id"])
    assert digits == [sorted(each) for each in wanted]
    assert float(scores.split("mAP50 ")[1]) > 0.95


@pytest.mark.parametrize("suffix", ["", "_gcu"])
def test_trained_question_answerer_finds_the_right_spans(trained_at: list[str], suffix: str) -> None:
    folder = EXAMPLES / "passages"
    command = [
        str(EXAMPLES / "bert/client.py"),
        *trained_at,
        "-m",
        f"passages{suffix}",
        "-b",
        "3",
        "--vocab_file",
        str(folder / "vocab.txt"),
    ]
    assert run(*command, "--input_file", str(folder / "questions.json")).splitlines()[-1] == "6 questions: exact match 100.0%, F1 100.0%"
