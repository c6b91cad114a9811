"""Padding: exact arrays and batches, and results equal to those of requests that run alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.backend import Arrays, Instance
from stoker.backends.api.errors import BackendFailed, InvalidRequest
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.config.padding import outer_signature, padding_of
from stoker.server.config.report import Report
from stoker.server.core.model_config import DynamicBatching, InstanceGroup, ModelConfig
from stoker.server.core.request import EngineResult, InferRequest, InferResponse
from stoker.server.execution.worker import InlineWorker
from stoker.server.scheduling.padding import Padder, PaddingScheduler
from stoker.server.scheduling.scheduler import Scheduler
from tests.fakes.puppet_worker import HandTimers, RecorderLog

FP32, INT64 = DataType.FP32, DataType.INT64
SIGNATURE = ModelSignature(
    (TensorSpec("ids", INT64, (-1,)), TensorSpec("types", INT64, (-1,)), TensorSpec("mask", INT64, (-1,)), TensorSpec("bias", FP32, (1,))),
    (TensorSpec("states", FP32, (-1, 2)), TensorSpec("pooled", FP32, (1,))),
    8,
)
PARAMETERS = {"pad_buckets": "ids+types=4,8,16", "pad_mask_input": "mask", "pad_value": "ids=7", "pad_crop_outputs": "states"}


class Encoder(Instance):
    """Honours its mask: `states` are twice the ids and the types beside them, `pooled` is the masked sum of the ids plus the bias.

    Attributes:
        batches: The inputs of each execution.
    """

    only_computes = True

    def __init__(self) -> None:
        self.batches: list[dict[str, np.ndarray]] = []

    def execute(self, inputs: Arrays, output_names: Sequence[str]) -> Arrays:
        self.batches.append({name: np.array(array) for name, array in inputs.items()})
        ids, types = np.asarray(inputs["ids"]).astype(np.float32), np.asarray(inputs["types"]).astype(np.float32)
        pooled = np.sum(ids * np.asarray(inputs["mask"]), axis=1, keepdims=True).astype(np.float32) + np.asarray(inputs["bias"])
        return {"states": np.stack([2 * ids, types], axis=2), "pooled": pooled.astype(np.float32)}


class Rig:
    """A padding scheduler over an encoder; `results` by request id."""

    def __init__(self, parameters: Mapping[str, str] = PARAMETERS) -> None:
        report = Report("m/config.pbtxt", {}, first_line=1)
        padding = padding_of(parameters, SIGNATURE, report, pads_all=False)
        report.raise_if_any()
        assert padding is not None
        self.time, self.log, self.model = HandTimers(), RecorderLog(), Encoder()
        self.results: dict[str, EngineResult] = {}
        self.config = ModelConfig(
            name="m",
            backend="fake",
            platform="fake",
            signature=outer_signature(SIGNATURE, padding),
            model_filename="x",
            instance_groups=(InstanceGroup(name="m", count=1),),
            dynamic_batching=DynamicBatching(),
            padding=padding,
        )
        inner = self.config.inner
        self.inner = Scheduler(
            inner,
            1,
            [InlineWorker(self.model, inner.signature, self.time)],
            clock=self.time,
            timers=self.time,
            recorder=self.log,
            max_queue_size=100,
        )
        self.scheduler = PaddingScheduler(self.inner, padding, self.config.signature, inner.signature, self.log)

    def ask(
        self, request_id: str, ids: Sequence[Sequence[int]], outputs: tuple[str, ...] = ("states", "pooled"), **more: np.ndarray
    ) -> Any:
        rows = np.array(ids, np.int64)
        inputs: dict[str, np.ndarray] = {"ids": rows, "types": np.ones_like(rows), "bias": np.zeros((len(rows), 1), np.float32), **more}
        request = InferRequest("m", inputs, outputs, self.config.signature, request_id=request_id, rows=len(rows))
        return self.scheduler.submit(request, lambda result: self.results.__setitem__(request_id, result))

    def outputs(self, request_id: str) -> dict[str, list[Any]]:
        response = self.results[request_id]
        assert isinstance(response, InferResponse), response
        assert response.request_id == request_id
        assert response.signature is self.config.signature
        return {name: array.tolist() for name, array in response.outputs.items()}


def test_requests_of_different_lengths_share_a_batch_of_the_smallest_bucket() -> None:
    rig = Rig()
    rig.ask("a", [[1, 2]])
    rig.ask("b", [[3, 4, 5]])
    rig.time.run()
    (batch,) = rig.model.batches
    assert batch["ids"].tolist() == [[1, 2, 7, 7], [3, 4, 5, 7]]
    assert batch["types"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]
    assert batch["mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]
    assert rig.outputs("a") == {"states": [[[2.0, 1.0], [4.0, 1.0]]], "pooled": [[3.0]]}
    assert rig.outputs("b")["pooled"] == [[12.0]]
    assert rig.log.padded_elements == [(4, 8), (6, 8)]


def test_requests_of_different_buckets_run_apart_and_exact_sizes_are_not_copied() -> None:
    rig = Rig()
    exact = np.array([[1, 2, 3, 4]], np.int64)
    rig.ask("a", exact.tolist(), mask=np.ones((1, 4), np.int64))
    rig.ask("b", [[1] * 9])
    rig.time.run()
    assert [batch["ids"].shape for batch in rig.model.batches] == [(1, 4), (1, 16)]
    assert rig.log.padded_elements == [(8, 8), (18, 32)]


def test_size_above_the_largest_bucket_is_not_padded() -> None:
    rig = Rig()
    rig.ask("a", [[1] * 20])
    rig.time.run()
    assert rig.model.batches[0]["ids"].shape == (1, 20)
    assert len(rig.outputs("a")["states"][0]) == 20


def test_mask_of_the_client_is_kept_and_padded_with_zeros() -> None:
    rig = Rig()
    rig.ask("a", [[1, 2, 3]], mask=np.array([[1, 0, 1]], np.int64))
    rig.time.run()
    assert rig.model.batches[0]["mask"].tolist() == [[1, 0, 1, 0]]
    assert rig.outputs("a")["pooled"] == [[4.0]]


def test_inputs_of_a_group_must_have_one_size() -> None:
    rig = Rig()
    with pytest.raises(InvalidRequest, match="input 'types' has size 2 on axis 1, but must have 3, as input 'ids'"):
        rig.ask("a", [[1, 2, 3]], types=np.ones((1, 2), np.int64))
    assert rig.log.failures == ["REJECTED"]


def test_output_without_the_padded_size_is_an_error_with_the_way_out() -> None:
    rig = Rig({**PARAMETERS, "pad_crop_outputs": "states"})
    rig.model.execute = lambda inputs, names: {  # type: ignore[method-assign, assignment]
        "states": np.zeros((1, 3, 2), np.float32),
        "pooled": np.zeros((1, 1), np.float32),
    }
    rig.ask("a", [[1, 2]])
    rig.time.run()
    result = rig.results["a"]
    assert isinstance(result, BackendFailed)
    assert "remove it from pad_crop_outputs" in result.message


def test_cancelled_request_leaves_the_queue() -> None:
    rig = Rig()
    rig.ask("a", [[1, 2]]).cancel()
    rig.time.run()
    assert (rig.model.batches, rig.results, rig.log.failures, rig.scheduler.in_flight) == ([], {}, ["CANCELED"], 0)


requests = st.lists(
    st.integers(1, 20).flatmap(lambda size: st.lists(st.lists(st.integers(-9, 9), min_size=size, max_size=size), min_size=1, max_size=3)),
    min_size=1,
    max_size=6,
)


@given(requests, st.sampled_from(["4,8,16", "auto", "1", "5,20"]))
def test_results_are_those_of_requests_that_run_alone_and_unpadded(asked: list[list[list[int]]], buckets: str) -> None:
    rig = Rig({**PARAMETERS, "pad_buckets": f"ids+types={buckets}"})
    for number, ids in enumerate(asked):
        rig.ask(f"{number}", ids)
    rig.time.run()
    for number, ids in enumerate(asked):
        array = np.array(ids)
        expected = {
            "states": np.stack([2.0 * array, np.ones_like(array)], axis=2).tolist(),
            "pooled": array.sum(axis=1, keepdims=True).astype(float).tolist(),
        }
        assert rig.outputs(f"{number}") == expected
    useful, computed = (sum(each) for each in zip(*rig.log.padded_elements, strict=True))
    assert useful == 2 * sum(len(ids) * len(ids[0]) for ids in asked) <= computed


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"pad_buckets": "ids"}, "expected NAME[+NAME...]=SIZE"),
        ({"pad_buckets": "ids=8,4"}, "the sizes must ascend"),
        ({"pad_buckets": "ids=0"}, "the sizes must ascend, from 1"),
        ({"pad_buckets": "ids=4;ids=8"}, "'ids[0]' is there twice"),
        ({"pad_buckets": "idz=4"}, "no input 'idz'; there is ids, types, mask, bias"),
        ({"pad_buckets": "bias=4"}, "input 'bias' with dims [1] has 0 open axes"),
        ({"pad_buckets": "ids[1]=4"}, "axis 1 of input 'ids' with dims [-1] is not open"),
        ({"pad_mask_input": "bias"}, "has 0 open axes"),
        ({"pad_value": "bias=1"}, "'bias' is no padded input; these are ids, types"),
        ({"pad_value": "ids=half"}, "'half' is no value of TYPE_INT64"),
        ({"pad_crop_outputs": "pooled"}, "output 'pooled' with dims [1] has 0 open axes"),
        ({"pad_crop_outputs": "states=bias[0]"}, "axis 0 of input 'bias'"),
    ],
)
def test_wrong_parameter_is_named_with_its_reason(change: dict[str, str], wrong: str) -> None:
    report = Report("m/config.pbtxt", {}, first_line=1)
    assert padding_of(PARAMETERS | change, SIGNATURE, report, pads_all=False) is None
    (key,) = change
    with pytest.raises(Exception, match=r"config\.pbtxt") as caught:
        report.raise_if_any()
    assert f'parameters["{key}"]' in str(caught.value)
    assert wrong in str(caught.value)


def test_parameter_without_buckets_has_no_meaning() -> None:
    report = Report("m/config.pbtxt", {}, first_line=1)
    assert padding_of({"pad_value": "1"}, SIGNATURE, report, pads_all=False) is None
    with pytest.raises(Exception, match="has no meaning without 'pad_buckets'"):
        report.raise_if_any()


def test_rule_of_tensorflow_serving_pads_every_open_axis_with_its_first_element() -> None:
    report = Report("m/config.pbtxt", {}, first_line=1)
    padding = padding_of({}, SIGNATURE, report, pads_all=True)
    assert padding is not None
    assert [group.axes[0].name for group in padding.groups] == ["ids", "types", "mask"]
    padded = Padder(padding, SIGNATURE).pad({"ids": np.array([[5, 6, 7]], np.int64)}, 1)
    assert padded.arrays["ids"].tolist() == [[5, 6, 7, 5, 5, 5, 5, 5]]
