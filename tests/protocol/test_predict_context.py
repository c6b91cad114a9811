"""`PredictContext` against a real server, over both protocols."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker_client as sdk
from stoker_client.adlik import PredictContext
from tests.fakes.server_process import REPOSITORY_ROOT, SAMPLE_MODELS, ServerProcess, copy_models, running_server

pytestmark = pytest.mark.protocol


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("predict_context")
    repository = copy_models(SAMPLE_MODELS, folder / "models", ["digits", "simple"])
    with running_server(f"--model_base_path={repository}", "--settle-secs=0", at=folder) as started:
        yield started


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    with np.load(REPOSITORY_ROOT / "examples/digits/heldout.npz") as heldout:
        return heldout["images"][:8].astype(np.float32)


@pytest.fixture(params=["grpc", "http"])
def where(request: pytest.FixtureRequest, server: ServerProcess) -> dict[str, Any]:
    return {"protocol": request.param, "url": server.grpc if request.param == "grpc" else server.http}


def test_prediction_equals_that_of_kserve_v2(where: dict[str, Any], server: ServerProcess, images: np.ndarray) -> None:
    with sdk.connect(f"grpc://{server.grpc}") as client:
        expected = client.infer("digits", {"image": images})["scores"]
    with PredictContext("digits", **where) as context:
        assert [(tensor.name, list(tensor.dims)) for tensor in context.model_config.input] == [("image", [8, 8])]
        assert context.model_config.max_batch_size == 32
        output = context.run({"image": list(images)}, {"scores": 3}, batch_size=8)["scores"]
        every = context.run({"image": images}, [])
    np.testing.assert_array_equal(output.tensor, expected)
    np.testing.assert_array_equal(every["scores"].tensor, expected)
    labels = (Path(SAMPLE_MODELS) / "digits" / "labels.txt").read_text().split()
    for row, classes in zip(expected, output.batch_classes, strict=True):
        best = np.argsort(-row, kind="stable")[:3]
        assert [each["idx"] for each in classes] == best.tolist()
        assert [each["label"] for each in classes] == [labels[at] for at in best]
        assert [each["score"] for each in classes] == pytest.approx(row[best].tolist(), rel=1e-6)


def test_asynchronous_predictions_return_their_own_results(where: dict[str, Any], images: np.ndarray) -> None:
    with PredictContext("digits", **where) as context:
        calls = [context.async_run({"image": images[at : at + 1]}, ["scores"]) for at in range(8)]
        found = [context.process_response(["scores"], call.result(30))["scores"].tensor for call in calls]
        together = context.run({"image": images}, ["scores"])["scores"].tensor
    np.testing.assert_allclose(np.concatenate(found), together, rtol=1e-5, atol=1e-6)


def test_python_numbers_are_converted_to_the_models_type(where: dict[str, Any]) -> None:
    with PredictContext("simple", **where) as context:
        outputs = context.run({"INPUT0": [list(range(16))], "INPUT1": [[1] * 16]}, ["OUTPUT0", "OUTPUT1"])
    assert outputs["OUTPUT0"].tensor.tolist() == [list(range(1, 17))]
    assert outputs["OUTPUT1"].tensor.tolist() == [list(range(-1, 15))]


@pytest.mark.parametrize("version", [1, "stable"])
def test_prediction_accepts_a_version(where: dict[str, Any], images: np.ndarray, version: int | str) -> None:
    with PredictContext("digits", version, **where) as context:
        assert context.run({"image": images}, ["scores"])["scores"].tensor.shape == (8, 10)


@pytest.mark.parametrize("name", ["nobody", "digits"])
def test_unknown_model_or_version_is_not_found(where: dict[str, Any], name: str) -> None:
    with pytest.raises(sdk.NotFound, match=name):
        PredictContext(name, 7, **where)


@pytest.mark.parametrize(
    ("inputs", "outputs", "text"),
    [
        ({"image": np.zeros((1, 8, 8), np.int32)}, ["scores"], "image"),
        ({"image": np.zeros((1, 8, 7), np.float32)}, ["scores"], "image"),
        ({"picture": np.zeros((1, 8, 8), np.float32)}, ["scores"], "picture|image"),
        ({"image": np.zeros((33, 8, 8), np.float32)}, ["scores"], "32"),
        ({"image": np.zeros((1, 8, 8), np.float32)}, ["answers"], "answers"),
    ],
)
def test_request_that_contradicts_the_model_names_the_reason(where: dict[str, Any], inputs, outputs, text: str) -> None:
    with PredictContext("digits", **where) as context, pytest.raises(sdk.InvalidRequest) as caught:
        context.run(inputs, outputs)
    assert re.search(text, str(caught.value))
