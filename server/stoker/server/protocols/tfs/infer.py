"""Classify, Regress and MultiInference: Examples in, labelled scores or numbers out."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from stoker.backends.api.errors import InvalidRequest, ServingError
from stoker.backends.api.model import ModelSignature
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.request import InferResponse, Via
from stoker.server.core.servable import run_while_borrowed
from stoker.server.engine.interface import Engine
from stoker.server.protocols.tfs import examples as example_arrays
from stoker.server.protocols.tfs.examples import Examples
from stoker.server.protocols.tfs.model_spec import DEFAULT_SIGNATURE, ModelQuery
from stoker.server.protocols.tfs.request import Target, Targets, infer_request
from stoker.server.protocols.tfs.signatures import (
    CLASSIFY,
    CLASSIFY_METHOD,
    REGRESS,
    REGRESS_METHOD,
    ClassifyOutputs,
    classify_outputs,
    regress_output,
)

_Outputs = TypeVar("_Outputs")
_SIGNATURES = {CLASSIFY_METHOD: CLASSIFY, REGRESS_METHOD: REGRESS}
#: Up to so many values of all examples together they are made arrays on the event loop.
_INLINE_VALUES = 16_384


class Classified(NamedTuple):
    """What Classify answers: the version that answered, and by sample its (label, score) pairs in the model's order."""

    version: int
    samples: list[list[tuple[str, float]]]


class Regressed(NamedTuple):
    """What Regress answers: the version that answered, and a number by sample."""

    version: int
    values: list[float]


class ExampleInference:
    """Answers what takes Examples. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits, targets: Targets) -> None:
        self._engine = engine
        self._limits = limits
        self._targets = targets

    async def classify(self, ask: ModelQuery, examples: Examples, size_bytes: int, deadline_ns: int | None, via: Via) -> Classified:
        """The classes of `examples`, which came in `size_bytes`.

        Raises:
            FailedPrecondition: the model is none that classifies. InvalidRequest: the examples do not fit it. And as `Engine.infer`.
        """
        target, outputs = self._target(ask, CLASSIFY_METHOD, via, classify_outputs)
        response = await self._run(target, examples, outputs.names, size_bytes, deadline_ns, via)
        labels: Sequence[str] = ()
        if outputs.scores is not None and outputs.classes is None:
            labels = self._engine.labels(ask.name, response.model_version, outputs.scores.name)
        return Classified(response.model_version, _classes(response, outputs, labels, self._limits))

    async def regress(self, ask: ModelQuery, examples: Examples, size_bytes: int, deadline_ns: int | None, via: Via) -> Regressed:
        """The numbers of `examples`.

        Raises:
            As `classify`.
        """
        target, output = self._target(ask, REGRESS_METHOD, via, regress_output)
        response = await self._run(target, examples, (output.name,), size_bytes, deadline_ns, via)
        return Regressed(response.model_version, response.outputs[output.name].reshape(-1).astype(np.float32).tolist())

    def _target(self, ask: ModelQuery, method: str, via: Via, outputs_of: Callable[[ModelSignature], _Outputs]) -> tuple[Target, _Outputs]:
        """The model, and what of its outputs answers by `method`; a refusal is noted with the model's name."""
        try:
            target = self._targets.find(ask)
            if ask.signature_name not in ("", DEFAULT_SIGNATURE, _SIGNATURES[method]):
                raise InvalidRequest(f"No signature was found with the name: {ask.signature_name[:128]}")
            return target, outputs_of(target.check.signature)
        except ServingError as error:
            self._engine.count_refused(ask.name, ask.version, error, via)
            raise

    async def _run(
        self, target: Target, examples: Examples, outputs: tuple[str, ...], size_bytes: int, deadline_ns: int | None, via: Via
    ) -> InferResponse:
        with Reservation(self._engine.budget) as grown:
            try:
                grown_bytes = example_arrays.repeated(examples, target.check, self._limits)
                if grown_bytes:
                    grown.take(grown_bytes)
                if max(size_bytes, grown_bytes) > self._limits.decode_inline_bytes or len(examples.own) > _INLINE_VALUES:
                    inputs = await run_while_borrowed(target.servable, example_arrays.arrays, examples, target.check)
                else:
                    inputs = example_arrays.arrays(examples, target.check)
                request = infer_request(target, inputs, outputs, size_bytes=size_bytes, deadline_ns=deadline_ns, via=via)
            except ServingError as error:
                self._engine.count_refused(target.ask.name, target.ask.version, error, via)
                raise
            return await self._engine.infer(request)


def _classes(response: InferResponse, outputs: ClassifyOutputs, labels: Sequence[str], limits: Limits) -> list[list[tuple[str, float]]]:
    scores = None if outputs.scores is None else response.outputs[outputs.scores.name].astype(np.float32)
    classes = None if outputs.classes is None else response.outputs[outputs.classes.name]
    shapes = {array.shape for array in (scores, classes) if array is not None}
    if len(shapes) > 1:
        raise InvalidRequest(f"Tensors class and score should match in dim_size(1). Got {' vs. '.join(map(str, sorted(shapes)))}")
    rows, count = shapes.pop()
    if rows * count > limits.class_count:
        raise InvalidRequest(f"{rows} samples of {count} classes are more than the {limits.class_count} that one answer may hold")
    texts: list[Any] = [list(labels[:count]) + [""] * (count - len(labels))] * rows if classes is None else classes.tolist()
    numbers: list[Any] = [[0.0] * count] * rows if scores is None else scores.tolist()
    return [
        [(_text(label), score) for label, score in zip(row_texts, row_numbers, strict=True)]
        for row_texts, row_numbers in zip(texts, numbers, strict=True)
    ]


def _text(label: bytes | str) -> str:
    return label if isinstance(label, str) else label.decode(errors="replace")
