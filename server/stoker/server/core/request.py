"""Requests and responses between a frontend and the engine, the version that serves them, and the facts for the access log."""

import enum
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import ParamSpec, Protocol, TypeVar

import numpy as np

from stoker.backends.api.backend import ResponseSink
from stoker.backends.api.errors import ServingError
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.server.core.sequence import SequenceMark
from stoker.server.core.tasks import run_off_loop
from stoker.server.core.trace import CallerTrace, RequestTrace

P = ParamSpec("P")
T = TypeVar("T")


class Servable(Protocol):
    """One loaded version. A request resolves it once, is validated against its signature, and runs on it.

    Without more, the reference is good until the next `await`: a request that is submitted in the same turn of the event loop reaches this
    version. A request that waits in between borrows it meanwhile, so that the version is not unloaded.
    """

    @property
    def version(self) -> int:
        """Its number."""

    @property
    def signature(self) -> ModelSignature:
        """The signature that validates requests; the same object for as long as this version serves."""

    def borrowed(self) -> AbstractContextManager[None]:
        """Keeps the version loaded until the context ends."""


async def run_while_borrowed(servable: Servable, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As `run_off_loop`, while `servable` stays loaded. REQUIRES: the caller submits its request before it waits again."""
    with servable.borrowed():
        return await run_off_loop(function, *args, **kwargs)


class Via(enum.StrEnum):
    """By which protocol, and over which transport, a request came."""

    KSERVE_GRPC = "kserve-grpc"
    KSERVE_HTTP = "kserve-http"
    GENERATE = "generate-http"
    TFS_GRPC = "tfs-grpc"
    TFS_HTTP = "tfs-http"
    ADLIK_GRPC = "adlik-grpc"
    ADLIK_HTTP = "adlik-http"


class AccessNote:
    """Filled in by the scheduler for the requests that will be logged; the others have none. Confined to: the event loop.

    Attributes:
        is_logged: Its line is written.
        queue_ns: How long the request waited; None: it never left the queue.
        compute_ns: The time of the batch that it was in: inputs, model, outputs.
    """

    __slots__ = ("compute_ns", "is_logged", "queue_ns")

    def __init__(self) -> None:
        self.is_logged = False
        self.queue_ns: int | None = None
        self.compute_ns: int | None = None


Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]
ParameterValue = bool | int | float | str


class InferRequest:
    """One inference request, decoded and validated.

    Where one is made for every request it is made by position, which takes 0.4 us instead of 0.7; elsewhere by name.

    Attributes:
        model_name: The model asked for.
        inputs: By name, `[rows, *dims]` (no rows where the model is not batched), little-endian native arrays at any alignment.
        output_names: The outputs wanted, in the order wanted.
        signature: The signature this request was validated against.
        model_version: The version asked for; None: the one that serves by default.
        request_id: The client's id, echoed; empty if none was given.
        rows: Rows of the batch dimension; 1 where the model is not batched.
        deadline_ns: When the client stops waiting, on the `Clock`'s monotonic scale; None = never.
        parameters: The client's further parameters.
        received_ns: When the front took the request in, on the same scale.
        size_bytes: What the request holds in memory, for the admission budget.
        via: By which protocol it came; None: by none of the network's.
        priority: 0 = the model's default, 1 = highest.
        timeout_us: The request's own queue timeout; 0 = none.
        sequence: Where in a sequence it stands; None: the client named none.
        trace: Where the points that it passes are noted; None for all but those that are traced.
        caller: The trace that the client is in, where traces of clients are taken up; None: it names none.
        access: Where its times are noted; None for all but those whose line in the access log needs them.
        responses: Set by the engine where the model may return any number of responses: takes each response.
        servable: The version that it was validated against and runs on; `Engine.submit` requires it.
    """

    # fmt: off
    __slots__ = (
        "access", "caller", "deadline_ns", "inputs", "model_name", "model_version", "output_names", "parameters", "priority",
        "received_ns", "request_id", "responses", "rows", "sequence", "servable", "signature", "size_bytes", "timeout_us", "trace",
        "via",
    )
    # fmt: on

    def __init__(
        self,
        model_name: str,
        inputs: Mapping[str, Array],
        output_names: tuple[str, ...],
        signature: ModelSignature,
        model_version: int | None = None,
        request_id: str = "",
        rows: int = 1,
        deadline_ns: int | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
        received_ns: int = 0,
        size_bytes: int = 0,
        via: Via | None = None,
        priority: int = 0,
        timeout_us: int = 0,
        sequence: SequenceMark | None = None,
        responses: ResponseSink | None = None,
        trace: RequestTrace | None = None,
        caller: CallerTrace | None = None,
        access: AccessNote | None = None,
        servable: Servable | None = None,
    ) -> None:
        self.model_name = model_name
        self.inputs = inputs
        self.output_names = output_names
        self.signature = signature
        self.model_version = model_version
        self.request_id = request_id
        self.rows = rows
        self.deadline_ns = deadline_ns
        self.parameters: Mapping[str, ParameterValue] = {} if parameters is None else parameters
        self.received_ns = received_ns
        self.size_bytes = size_bytes
        self.via = via
        self.priority = priority
        self.timeout_us = timeout_us
        self.sequence = sequence
        self.responses = responses
        self.trace = trace
        self.caller = caller
        self.access = access
        self.servable = servable


class InferResponse:
    """The response to one request.

    Attributes:
        model_name: As served.
        model_version: The version that responded.
        request_id: The request's id.
        outputs: By name in the order wanted, `[rows, *dims]`.
        signature: Of the version that responded: gives each output's datatype.
    """

    __slots__ = ("model_name", "model_version", "outputs", "request_id", "signature")

    def __init__(
        self, model_name: str, model_version: int, request_id: str, outputs: Mapping[str, Array], signature: ModelSignature
    ) -> None:
        self.model_name = model_name
        self.model_version = model_version
        self.request_id = request_id
        self.outputs = outputs
        self.signature = signature

    def output_spec(self, name: str) -> TensorSpec:
        """The spec of the output `name`.

        Raises:
            KeyError: it has none of that name: whoever made the response is broken.
        """
        spec = self.signature.output(name)
        if spec is None:
            raise KeyError(f"the engine returned '{name}', which is not an output of '{self.model_name}'")
        return spec


EngineResult = InferResponse | ServingError
"""What becomes of an accepted request."""
Done = Callable[[EngineResult], None]
"""Takes the one result of a request, on the event loop. An exception from it is logged and affects no other request."""


class InFlight(Protocol):
    """An accepted request that has no response yet."""

    def cancel(self) -> None:
        """The caller does not wait any more: `done` is not called from now on. After the response this has no effect."""
