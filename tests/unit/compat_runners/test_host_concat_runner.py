"""Inputs that travel to the device in one stream."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from poprt.runtime import HostConcatConfig, HostConcatRunner, HostConcatRunnerConfig

from stoker.backends.ipu.opaques import HOST_CONCAT, ConcatenatedInput, HostConcat
from stoker.backends.ipu.runtime import ApplicationRuntimeError, ModelRunner, RuntimeConfig
from tests.fakes.ipu_programs import Part
from tests.fakes.ipu_runners import Bench, assert_nothing_is_left, rows

NOTE = HostConcat(
    inputs=(ConcatenatedInput(tensor_name="joined", input_tensor_names=("a", "b", "c"), shape=(2, 1), dtype="float", data_size_bytes=8),)
).to_bytes()
A, B, C = rows(2, 1, begin=1), rows(2, 1, begin=10), rows(2, 1, begin=100)
OTHER = np.array([1000], np.float32)

#: Sums what is joined, and adds `other`: [3, 2, 1] and [1] to [3, 2, 1].
SUMMING = Part(
    nodes=[helper.make_node("Add", ["joined", "other"], ["y"])],
    inputs={"joined": (3, 2, 1), "other": (1,)},
    outputs={"y": (3, 2, 1)},
)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    assert_nothing_is_left(bench)


def concatenating(bench: Bench, config: RuntimeConfig | None = None, *, note: bytes | None = NOTE) -> ModelRunner:
    return bench.runner(SUMMING, config=config, kind=HostConcatRunner, opaques={} if note is None else {HOST_CONCAT: note})


def test_inputs_are_concatenated_as_the_executable_notes(bench: Bench) -> None:
    with concatenating(bench) as runner:
        y = runner.execute({"c": C, "a": A, "other": OTHER, "b": B})["y"]

        np.testing.assert_array_equal(y, np.stack([A, B, C]) + 1000)


def test_several_compiled_batches_are_joined_batch_by_batch(bench: Bench) -> None:
    a, b, c = rows(4, 1, begin=1), rows(4, 1, begin=10), rows(4, 1, begin=100)
    with concatenating(bench) as runner:
        y = runner.execute({"a": a, "b": b, "c": c, "other": np.repeat(OTHER, 2)})["y"]

        np.testing.assert_array_equal(y, np.concatenate([np.stack([each[at : at + 2] for each in (a, b, c)]) for at in (0, 2)]) + 1000)


def test_requests_use_the_inputs_of_the_source_model(bench: Bench) -> None:
    with concatenating(bench) as runner:
        described = [(desc.name, desc.shape, desc.size_in_bytes) for desc in runner.get_execute_inputs()]

        assert described == [("a", [2, 1], 8), ("b", [2, 1], 8), ("c", [2, 1], 8), ("other", [1], 4)]
        assert [desc.name for desc in runner.get_model_inputs()] == ["a", "b", "c", "other"]


def test_configuration_may_name_the_joined_inputs(bench: Bench) -> None:
    joined = HostConcatConfig()
    joined.tensor_name, joined.input_tensor_names, joined.shape, joined.data_size_bytes = "joined", ["p", "q"], [3, 1], 12
    config = HostConcatRunnerConfig(host_concat_config={"joined": joined})
    with concatenating(bench, config, note=None) as runner:
        y = runner.execute({"p": rows(3, 1), "q": rows(3, 1, begin=4), "other": OTHER})["y"]

        assert y.ravel().tolist() == [1001, 1002, 1003, 1004, 1005, 1006]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"a": A, "b": B}, "lacks inputs that travel in stream 'joined': c"),
        ({"a": A, "b": B, "c": np.zeros((3, 1), np.float32)}, r"'c' has shape \[3, 1\], expected \[2 x N, 1\]"),
        ({"a": A, "b": B, "c": np.zeros((2, 1))}, "'c' is float64, expected float32"),
        ({"a": A, "b": B, "c": rows(4, 1)}, "'a' 1, 'b' 1, 'c' 2"),
        ({}, "lacks input 'joined'"),
    ],
)
def test_inputs_that_cannot_be_joined_are_refused(bench: Bench, inputs: dict[str, np.ndarray], message: str) -> None:
    with concatenating(bench) as runner, pytest.raises(ApplicationRuntimeError, match=message):
        runner.execute({**inputs, "other": OTHER})


def test_executable_without_notes_is_refused(bench: Bench) -> None:
    with pytest.raises(ApplicationRuntimeError, match="notes no joined inputs"):
        concatenating(bench, note=None)


def test_note_that_contradicts_the_stream_is_refused(bench: Bench) -> None:
    wrong = HostConcat(
        inputs=(ConcatenatedInput(tensor_name="joined", input_tensor_names=("a", "b"), shape=(2, 1), dtype="float", data_size_bytes=8),)
    )
    with pytest.raises(ApplicationRuntimeError, match=r"'joined' of 24 bytes cannot carry 2 inputs of shape \[2, 1\]"):
        concatenating(bench, note=wrong.to_bytes())
    with pytest.raises(ApplicationRuntimeError, match=HOST_CONCAT):
        concatenating(bench, note=b"[]")


def test_joined_inputs_have_no_batching_dimension(bench: Bench) -> None:
    with pytest.raises(ApplicationRuntimeError, match="batching_dim"):
        concatenating(bench, HostConcatRunnerConfig(batching_dim=0))
