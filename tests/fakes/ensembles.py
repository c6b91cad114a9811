"""An ensemble whose steps run on puppet workers, with time that the test turns."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stoker.backends.api.errors import ServingError, Unavailable
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.ensemble import Ensemble, EnsembleStep
from stoker.server.core.model_config import DynamicBatching, InstanceGroup, ModelConfig
from stoker.server.core.request import EngineResult, InferRequest, InferResponse, InFlight
from stoker.server.scheduling.ensemble import EnsembleScheduler
from stoker.server.scheduling.scheduler import Scheduler
from tests.fakes.puppet_worker import HandTimers, PuppetWorker, RecorderLog

FP32 = DataType.FP32


def signature(inputs: Sequence[str], outputs: Sequence[str], rows: int = 8, optional: Sequence[str] = ()) -> ModelSignature:
    """FP32 tensors of dims [2]."""
    return ModelSignature(
        tuple(TensorSpec(name, FP32, (2,), optional=name in optional) for name in inputs),
        tuple(TensorSpec(name, FP32, (2,)) for name in outputs),
        rows,
    )


def step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str], version: int | None = None) -> EnsembleStep:
    return EnsembleStep(model=model, version=version, inputs=inputs, outputs=outputs)


class StepModelRig:
    """One loaded model: a scheduler over a puppet worker. It has the attributes of a servable that a step uses."""

    def __init__(self, time: HandTimers, name: str, given: ModelSignature, slots: int = 1, max_queue_size: int = 100, **batching: Any):
        self.version = 1
        self.signature = given
        self.worker = PuppetWorker(slots)
        self.log = RecorderLog()
        config = ModelConfig(
            name=name,
            backend="fake",
            platform="fake",
            signature=given,
            model_filename="x",
            instance_groups=(InstanceGroup(name=name, count=1),),
            dynamic_batching=DynamicBatching(**batching),
        )
        self.scheduler = Scheduler(config, 1, [self.worker], clock=time, timers=time, recorder=self.log, max_queue_size=max_queue_size)

    def ids(self) -> list[list[str]]:
        """The request ids of each batch in work."""
        return [[item.request_id for item in work.items if isinstance(item, InferRequest)] for work in self.worker.works]


class EnsembleRig:
    """An ensemble under the test's hands. `results` has the results by request id, `ended` the ids of requests that are over."""

    def __init__(
        self,
        given: ModelSignature,
        ensemble: Ensemble,
        signatures: Mapping[str, ModelSignature],
        *,
        max_queue_size: int = 100,
        **step_settings: Any,
    ) -> None:
        self.time = HandTimers()
        self.models = {name: StepModelRig(self.time, name, each, **step_settings) for name, each in signatures.items()}
        self.log = RecorderLog()
        self.signature = given
        self.results: dict[str, EngineResult] = {}
        self.ended: list[str] = []
        self.asked: list[tuple[str, int | None]] = []
        self.scheduler = EnsembleScheduler(
            "e", 3, given, ensemble, [signatures[each.model] for each in ensemble.steps], self.resolve,
            clock=self.time, timers=self.time, recorder=self.log, max_queue_size=max_queue_size,
        )  # fmt: skip

    def resolve(self, name: str, version: int | None) -> StepModelRig:
        self.asked.append((name, version))
        if name not in self.models:
            raise Unavailable(f"model '{name}' does not serve")
        return self.models[name]

    def request(self, request_id: str, outputs: tuple[str, ...] = (), inputs: Mapping[str, np.ndarray] | None = None, **fields: Any):
        given = {spec.name: np.zeros((1, 2), np.float32) for spec in self.signature.inputs} if inputs is None else inputs
        rows = next(iter(given.values())).shape[0] if given and self.signature.is_batched else 1
        return InferRequest(
            model_name="e",
            request_id=request_id,
            inputs=given,
            rows=rows,
            output_names=outputs or tuple(spec.name for spec in self.signature.outputs),
            signature=self.signature,
            **fields,
        )

    def ask(
        self, request_id: str, outputs: tuple[str, ...] = (), inputs: Mapping[str, np.ndarray] | None = None, **fields: Any
    ) -> InFlight:
        return self.scheduler.submit(
            self.request(request_id, outputs, inputs, **fields),
            lambda result: self.results.__setitem__(request_id, result),
            lambda: self.ended.append(request_id),
        )

    def running(self) -> dict[str, list[list[str]]]:
        """After all due calls: for each model with batches in work, the request ids of each."""
        self.time.run()
        return {name: model.ids() for name, model in self.models.items() if model.worker.works}

    def finish(self, model: str, outcomes: Sequence[Any] | None = None) -> None:
        """Ends the oldest batch of a model; by default, each output is the sum of the request's inputs plus one."""
        rig = self.models[model]
        if outcomes is None:
            outcomes = [
                {name: np.add(sum(item.inputs.values()), np.float32(1)) for name in item.output_names} for item in rig.worker.works[0].items
            ]
        rig.worker.finish(outcomes)

    def finish_all(self) -> None:
        """Ends batches until none is left."""
        while running := self.running():
            for model in running:
                self.finish(model)

    def response(self, request_id: str) -> InferResponse:
        result = self.results[request_id]
        assert isinstance(result, InferResponse), result
        return result

    def error(self, request_id: str) -> ServingError:
        result = self.results[request_id]
        assert isinstance(result, ServingError), result
        return result


def chain(**settings: Any) -> EnsembleRig:
    """`e`: IN -> first -> between -> second -> OUT."""
    ensemble = Ensemble(
        (step("first", {"a": "IN"}, {"b": "between"}), step("second", {"x": "between"}, {"y": "OUT"})),
        settings.pop("max_inflight_requests", 0),
    )
    signatures = {"first": signature(["a"], ["b"]), "second": signature(["x"], ["y"])}
    return EnsembleRig(signature(["IN"], ["OUT"]), ensemble, signatures, **settings)


def diamond(**settings: Any) -> EnsembleRig:
    """`e`: IN -> split -> l, r; l -> left -> l2; r -> right -> r2; l2, r2 -> join -> OUT. The ensemble has the outputs OUT and l2."""
    ensemble = Ensemble((
        step("join", {"a": "l2", "b": "r2"}, {"y": "OUT"}),
        step("left", {"x": "l"}, {"y": "l2"}),
        step("right", {"x": "r"}, {"y": "r2"}),
        step("split", {"x": "IN"}, {"l": "l", "r": "r"}),
    ))  # fmt: skip
    signatures = {
        "join": signature(["a", "b"], ["y"]),
        "left": signature(["x"], ["y"]),
        "right": signature(["x"], ["y"]),
        "split": signature(["x"], ["l", "r"]),
    }
    return EnsembleRig(signature(["IN"], ["OUT", "l2"]), ensemble, signatures, **settings)
