"""The committed trained models: size, form, the recorded held-out scores, and the labels that the clients print."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from stoker.server.pb.adlik import model_pb2
from tests.fakes.example_scripts import EXAMPLES, example

MODELS = EXAMPLES / "models"
DATA = {
    "shapes": example("shapes/shape_pictures.py"),
    "digit_detector": example("digit_detector/pasted_digits.py"),
    "passages": example("passages/passages.py"),
}
#: The least score of each kind that the documentation may rely on.
LEAST = {"shapes": {"accuracy": 0.95}, "digit_detector": {"mAP": 0.65, "mAP50": 0.9}, "passages": {"exact match": 0.85, "F1": 0.85}}
#: Pillow and ONNX Runtime of other versions may round some pixels and sums differently.
TOLERANCE = 0.01
LARGEST_BYTES = 3_000_000


def path(name: str) -> Path:
    return MODELS / name / "1" / "model.onnx"


@pytest.mark.parametrize("name", DATA)
def test_trained_model_is_small_and_records_how_it_was_made(name: str) -> None:
    assert path(name).stat().st_size < LARGEST_BYTES
    properties = {each.key: each.value for each in onnx.load(path(name)).metadata_props}
    assert properties["seed"] == "0"
    assert json.loads(properties["packages"])["torch"].startswith("2.13.0")
    scores = json.loads(properties["held_out"])
    assert scores.keys() == LEAST[name].keys()
    assert all(scores[key] >= least for key, least in LEAST[name].items())


@pytest.mark.slow
@pytest.mark.parametrize("name", DATA)
def test_committed_model_has_the_recorded_score_on_the_held_out_data(name: str) -> None:
    inputs, truth = DATA[name].held_out()
    session = onnxruntime.InferenceSession(path(name), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    found = DATA[name].score(dict(zip(names, session.run(names, inputs), strict=True)), truth)
    assert found == pytest.approx(json.loads(session.get_modelmeta().custom_metadata_map["held_out"]), abs=TOLERANCE)


@pytest.mark.parametrize("name", DATA)
def test_row_of_a_batch_has_the_result_that_it_has_alone(name: str) -> None:
    inputs = DATA[name].calibration(3)
    session = onnxruntime.InferenceSession(path(name), providers=["CPUExecutionProvider"])
    together = session.run(None, inputs)
    alone = session.run(None, {key: array[1:2] for key, array in inputs.items()})
    for several, single in zip(together, alone, strict=True):
        np.testing.assert_allclose(several[1:2], single, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_classifier_client_prints_the_shape_of_each_committed_picture(served, capsys, protocol: str) -> None:
    server = served(path("shapes").read_bytes(), "shapes")
    pictures = EXAMPLES / "shapes" / "pictures"
    options = ["-m", "shapes", "-u", server.url(protocol), "-i", protocol, "-b", "4", "-t", str(pictures / "truth.txt")]
    example("resnet50/client.py").main([*options, str(pictures), str(MODELS / "shapes" / "labels.txt")])
    *lines, accuracy = capsys.readouterr().out.splitlines()
    assert accuracy == "ACC: 12 of 12 is 100.0% "
    for line, label in zip(lines, DATA["shapes"].LABELS, strict=True):
        assert line.startswith(f"Image: '{pictures / label}.jpeg', result: [{{'idx': ")
        assert line.endswith(f"'label': '{label}'}}]")


def test_detector_client_prints_the_digits_of_each_committed_picture(served, tmp_path: Path, capsys) -> None:
    server = served(path("digit_detector").read_bytes(), "digit_detector", layout=model_pb2.ModelInput.FORMAT_NCHW)
    pictures = EXAMPLES / "digit_detector" / "pictures"
    options = ["-m", "digit_detector", "-u", server.grpc_url, "-b", "2", "-o", str(tmp_path)]
    options += ["--labels", str(MODELS / "digit_detector" / "labels.txt"), "--truth", str(pictures / "truth.json")]
    example("yolov5s/client.py").main([*options, str(pictures)])
    *lines, precision = capsys.readouterr().out.splitlines()
    truth = json.loads((pictures / "truth.json").read_text())["annotations"]
    blocks = "\n".join(lines).split("Image: ")[1:]
    assert len(blocks) == 4
    found = Counter((number, int(line.split()[0])) for number, block in enumerate(blocks) for line in block.splitlines()[1:])
    wanted = Counter((each["image_id"], each["category_id"]) for each in truth)
    assert found == wanted
    assert float(precision.split("mAP50 ")[1]) > 0.95


def test_detector_client_names_a_truth_of_other_pictures(served, tmp_path: Path) -> None:
    server = served(path("digit_detector").read_bytes(), "digit_detector")
    truth = tmp_path / "truth.json"
    options = ["-m", "digit_detector", "-u", server.grpc_url, "-o", str(tmp_path), "--truth", str(truth)]
    options += ["--labels", str(MODELS / "digit_detector" / "labels.txt"), str(EXAMPLES / "digit_detector" / "pictures" / "0.jpeg")]
    client = example("yolov5s/client.py")
    truth.write_text('{"annotations": [{"image_id": 9, "category_id": 1, "bbox": [0, 0, 1, 1]}]}')
    with pytest.raises(SystemExit, match=r"truth\.json has no object of 0\.jpeg"):
        client.main(options)
    truth.write_text('{"annotations": [{"image_id": 9}]}')
    with pytest.raises(SystemExit, match=r"truth\.json is not in COCO's form"):
        client.main(options)


def test_question_client_prints_the_right_answers(served, capsys) -> None:
    server = served(path("passages").read_bytes(), "passages")
    folder = EXAMPLES / "passages"
    options = ["-m", "passages", "-u", server.grpc_url, "-b", "2", "--vocab_file", str(folder / "vocab.txt"), "--best", "1"]
    example("bert/client.py").main([*options, "--input_file", str(folder / "questions.json")])
    *lines, scores = capsys.readouterr().out.splitlines()
    assert scores == "6 questions: exact match 100.0%, F1 100.0%"
    asked = example("passages/passages.py").questions(6, 1)
    for (question, _), printed, best in zip(asked, lines[::2], lines[1::2], strict=True):
        assert printed == f"Question: {question.text}"
        assert best.split(maxsplit=1)[1] == question.answers[0]
