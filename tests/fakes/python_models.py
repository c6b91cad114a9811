"""Models written in Python, loaded in this process, and requests to them."""

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stoker.backends.api.backend import Arrays, Instance, LoadRequest, Parameters, ResponseSink
from stoker.backends.api.batch import BatchProcessor, Outcome, processor_for
from stoker.backends.api.calls import CallResponse, ModelCall, ModelControl
from stoker.backends.api.errors import ServingError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.response_parameters import parameters_of
from stoker.backends.api.tensor import DataType
from stoker.backends.python.backend import PythonBackend
from stoker.backends.testing.fake_clock import FakeClock

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


@dataclass(frozen=True)
class Mark:
    """A place in a sequence."""

    id: int | str
    is_start: bool = False
    is_end: bool = False


@dataclass
class Item:
    """A request's share of a batch; see `RequestShare`."""

    inputs: Arrays
    output_names: tuple[str, ...]
    rows: int = 1
    parameters: Parameters = field(default_factory=dict)
    responses: ResponseSink | None = None
    model_name: str = "m"
    model_version: int | None = None
    request_id: str = ""
    priority: int = 0
    timeout_us: int = 0
    deadline_ns: int | None = None
    sequence: Mark | None = None
    trace_context: str = ""
    is_cancelled: bool = False


class Sink:
    """Takes responses; after `most` of them the client is gone."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.taken: list[Arrays] = []
        self._most = most

    def put(self, outputs: Arrays) -> bool:
        if len(self.taken) >= self._most:
            return False
        self.taken.append(outputs)
        return True


class FakeCalls:
    """Other models: `models` has, by name, a function from the inputs to the outputs of each response."""

    def __init__(self, models: Mapping[str, Callable[[Arrays], Iterator[Arrays]]]) -> None:
        self._models = models
        self.calls: list[ModelCall] = []
        self.controls: list[ModelControl] = []
        self.control_result = True
        self.closed = 0

    def control(self, control: ModelControl) -> bool:
        self.controls.append(control)
        return self.control_result

    def call(self, call: ModelCall) -> Iterator[CallResponse]:
        self.calls.append(call)
        try:
            for outputs in self._models[call.model_name](call.inputs):
                parameters = parameters_of(outputs) or {}
                yield CallResponse(model_name=call.model_name, model_version=1, outputs=outputs, parameters=parameters)
        finally:
            self.closed += 1


def signature(
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    max_batch_size: int = 0,
    *,
    is_decoupled: bool = False,
    is_iterative: bool = False,
) -> ModelSignature:
    """A signature of tensors given as `(datatype, dims)`."""

    def specs(tensors: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(name, DataType(datatype), tuple(dims)) for name, (datatype, dims) in tensors.items())

    return ModelSignature(specs(inputs), specs(outputs), max_batch_size, is_decoupled, is_iterative=is_iterative)


def load(folder: Path, source: str, served: ModelSignature, *, files: Mapping[str, str] | None = None, **options: Any) -> Instance:
    """Loads `source` as model.py in the new folder `folder`, beside `files`."""
    folder.mkdir(parents=True, exist_ok=True)
    every = {"model.py": textwrap.dedent(source), **(files or {})}
    for name, text in every.items():
        (folder / name).write_text(textwrap.dedent(text))
    request: dict[str, Any] = {
        "model_name": "m",
        "version": 1,
        "files": ModelFiles(folder, {name: len(text) for name, text in every.items()}),
        "model_filename": "model.py",
        "signature": served,
        "instance_name": "m_0",
    }
    return PythonBackend().load(LoadRequest(**{**request, **options}))


def processor(instance: Instance, served: ModelSignature) -> BatchProcessor:
    """The processor of `instance`."""
    return processor_for(instance, served, FakeClock())


def run(instance: Instance, served: ModelSignature, items: Sequence[Item]) -> list[Outcome]:
    """Runs `items` as one batch."""
    return processor(instance, served).process(items).outcomes


def run_one(instance: Instance, served: ModelSignature, **options: Any) -> Outcome:
    """Runs one request with `inputs` and further attributes; it wants all outputs."""
    names = tuple(spec.name for spec in served.outputs)
    return run(instance, served, [Item(**{"output_names": names, **options})])[0]


def text_of(outcome: Outcome) -> str:
    """The message of an error."""
    assert isinstance(outcome, ServingError), outcome
    return outcome.message
