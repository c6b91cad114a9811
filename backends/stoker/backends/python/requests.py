"""`InferenceRequest` of `triton_python_backend_utils`: a request to the model, or one that it sends to another model (BLS)."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Final

from stoker.backends.api.calls import CallResponse, ModelCall, ModelCalls
from stoker.backends.api.errors import ServingError
from stoker.backends.api.layout import Array
from stoker.backends.api.response_parameters import ParameterValue
from stoker.backends.python.errors import TritonError, TritonModelException, triton_error
from stoker.backends.python.responses import (
    REQUEST_RELEASE_ALL,
    REQUEST_RELEASE_RESCHEDULE,
    Holder,
    InferenceResponse,
    InferenceResponseSender,
    RequestEnd,
    checked_parameters,
)
from stoker.backends.python.tensors import Tensor, as_bytes_array, held

FLAG_SEQUENCE_START: Final = 1
FLAG_SEQUENCE_END: Final = 2
MEMORY_GPU: Final = 0
MEMORY_CPU: Final = 1


class PreferredMemory:
    """Where the model would like the tensors of a response; here it is always the memory of the host."""

    def __init__(self, preferred_memory_type: int, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = preferred_device_id


class InferenceTrace:
    """The trace of a request."""

    def __init__(self, context: str = "") -> None:
        self._context = context

    def get_context(self) -> str | None:
        """The OpenTelemetry context as a JSON object with `traceparent`; None: the request is not traced as OpenTelemetry spans."""
        return self._context or None


class InferenceRequest:
    """A request. `triton_python_backend_utils` has a subclass for each model, with the model's way to other models."""

    #: How the model asks other models; None: it cannot.
    calls: ClassVar[ModelCalls | None] = None
    #: Whether the model may ask for a further execution of its requests.
    is_iterative: ClassVar[bool] = False

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = (),
        requested_output_names: Sequence[str] = (),
        model_name: str = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
        priority: int = 0,
    ) -> None:
        """Makes a request to the model `model_name`.

        Args:
            request_id: An id for logs.
            correlation_id: The sequence, a number or a text; 0 or empty: none.
            inputs: The tensors.
            requested_output_names: The outputs wanted; empty: all.
            model_name: The model asked for.
            model_version: The version asked for; -1: the one that serves by default.
            flags: `TRITONSERVER_REQUEST_FLAG_SEQUENCE_START` and `..._END`, added.
            timeout: The queue timeout, microseconds; 0: none.
            preferred_memory: Where the response's tensors are wanted; without effect.
            trace: The trace of the request that causes this one: the spans of this request are children of its span `compute`.
            parameters: Further parameters: bool, int, float or str by name.
            priority: 0: the other model's default; 1: the highest.

        Raises:
            TritonModelException: an argument is of a wrong type.
        """
        if not isinstance(correlation_id, (int, str)):
            raise TritonModelException(f"correlation_id takes an int or a str, not {type(correlation_id).__name__}")
        if trace is not None and not isinstance(trace, InferenceTrace):
            raise TritonModelException(f"trace takes an InferenceTrace, such as request.trace(), not {type(trace).__name__}")
        self._inputs = list(inputs)
        for tensor in self._inputs:
            if not isinstance(tensor, Tensor):
                raise TritonModelException(f"inputs takes Tensor objects, not {type(tensor).__name__}")
        self._request_id = request_id
        self._correlation_id = correlation_id
        self._output_names = list(requested_output_names)
        self.model_name = model_name
        self.model_version = model_version
        self._flags = flags
        self._timeout = timeout
        self._trace = trace or InferenceTrace()
        self._parameters = checked_parameters(parameters)
        self._priority = priority
        self._release_flags = REQUEST_RELEASE_ALL
        self._holder: Holder | None = None

    def hold(self, end: RequestEnd) -> None:
        """Makes this a request to the model, which ends with `end`."""
        self._holder = Holder(end)

    def inputs(self) -> list[Tensor]:
        """The tensors; an optional input that the client left out is not there."""
        return self._inputs

    def requested_output_names(self) -> list[str]:
        """The names of the outputs wanted."""
        return self._output_names

    def request_id(self) -> str:
        """The client's id; empty: none."""
        return self._request_id

    def correlation_id(self) -> int | str:
        """The sequence, a number or a text; 0: none."""
        return self._correlation_id

    def flags(self) -> int:
        """`TRITONSERVER_REQUEST_FLAG_SEQUENCE_START` and `..._END`, added."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Sets the flags of a request to another model."""
        self._flags = flags

    def timeout(self) -> int:
        """The request's own queue timeout, microseconds; 0: none."""
        return self._timeout

    def priority(self) -> int:
        """0: the model's default; 1: the highest."""
        return self._priority

    def parameters(self) -> str:
        """The parameters as a JSON object."""
        return json.dumps(dict(self._parameters))

    def trace(self) -> InferenceTrace:
        """The trace of the request."""
        return self._trace

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request or is gone."""
        return self._holder is not None and self._holder.end.is_cancelled

    def get_response_sender(self) -> InferenceResponseSender:
        """What sends responses after `execute` has returned, or more than one.

        Raises:
            TritonModelException: the request is not one to this model.
        """
        if self._holder is None:
            raise TritonModelException("a request that the model made has no response sender")
        self._holder.end.has_sender = True
        return InferenceResponseSender(self._holder)

    def set_release_flags(self, flags: int) -> None:
        """Says whether this execution of the request is the last one. Has an effect until `execute` returns.

        Args:
            flags: `TRITONSERVER_REQUEST_RELEASE_ALL` (the default), or `TRITONSERVER_REQUEST_RELEASE_RESCHEDULE`: `execute` gets the
                request again, in a later batch.

        Raises:
            TritonModelException: the flags are unknown, or the model has no iterative sequences.
        """
        if flags == REQUEST_RELEASE_RESCHEDULE and not (self.is_iterative and self._holder is not None):
            raise TritonModelException(
                "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, but the model is not configured to reschedule requests: "
                "that needs sequence_batching { iterative_sequence: true } in config.pbtxt"
            )
        if flags not in (REQUEST_RELEASE_ALL, REQUEST_RELEASE_RESCHEDULE):
            raise TritonModelException(
                f"set_release_flags takes TRITONSERVER_REQUEST_RELEASE_ALL or TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, not {flags}"
            )
        self._release_flags = flags

    @property
    def is_rescheduled(self) -> bool:
        """Whether the model asks for a further execution of the request."""
        return self._release_flags == REQUEST_RELEASE_RESCHEDULE

    def exec(self, decoupled: bool = False) -> Any:
        """Sends the request to the model `model_name`, and waits for its response.

        Args:
            decoupled: Whether the other model may respond any number of times.

        Returns:
            The `InferenceResponse`, which may be an error; with `decoupled` a `ResponseIterator` of them.

        Raises:
            TritonModelException: the model cannot ask others, or no model is named.
        """
        responses = self._responses()
        return ResponseIterator(responses) if decoupled else _single(responses)

    def async_exec(self, decoupled: bool = False) -> "asyncio.Future[Any]":
        """As `exec`, to be awaited in `async def execute`; the call runs in a thread of the loop's executor.

        Raises:
            RuntimeError: no event loop runs in this thread.
        """
        return asyncio.get_running_loop().run_in_executor(None, self.exec, decoupled)

    def _responses(self) -> Iterator[CallResponse]:
        if self.calls is None:
            raise TritonModelException("this model cannot ask other models: the server gave it no way to them")
        if not self.model_name:
            raise TritonModelException("model_name must name the model that is asked")
        inputs: dict[str, Array] = {}
        for tensor in self._inputs:
            array, datatype = held(tensor)
            inputs[tensor.name()] = as_bytes_array(array) if datatype.is_bytes else array
        return self.calls.call(
            ModelCall(
                model_name=self.model_name,
                model_version=None if self.model_version < 0 else self.model_version,
                inputs=inputs,
                output_names=tuple(self._output_names),
                request_id=self._request_id,
                sequence_id=self._correlation_id,
                sequence_start=bool(self._flags & FLAG_SEQUENCE_START),
                sequence_end=bool(self._flags & FLAG_SEQUENCE_END),
                priority=self._priority,
                timeout_us=self._timeout,
                trace_context=self._trace.get_context() or "",
                parameters=self._parameters,
            )
        )


def _response(response: CallResponse) -> InferenceResponse:
    return InferenceResponse([_tensor(name, array) for name, array in response.outputs.items()], parameters=response.parameters)


def _tensor(name: str, array: Array) -> Tensor:
    return Tensor(name, array)


def _failed(error: ServingError) -> InferenceResponse:
    return InferenceResponse(error=triton_error(error))


def _single(responses: Iterator[CallResponse]) -> InferenceResponse:
    try:
        found = list(islice(responses, 2))
    except ServingError as error:
        return _failed(error)
    finally:
        _close(responses)
    if len(found) == 1:
        return _response(found[0])
    count = "none" if not found else "more"
    return InferenceResponse(error=TritonError(f"expected a single response, got {count}: use exec(decoupled=True) for a decoupled model"))


def _close(responses: Iterator[CallResponse]) -> None:
    close = getattr(responses, "close", None)
    if close is not None:
        close()


class ResponseIterator:
    """The responses of a decoupled model to one request, in order; an error is the last of them."""

    def __init__(self, responses: Iterator[CallResponse]) -> None:
        self._responses = responses
        self._is_over = False

    def __iter__(self) -> "ResponseIterator":
        return self

    def __next__(self) -> InferenceResponse:
        if self._is_over:
            raise StopIteration
        try:
            return _response(next(self._responses))
        except StopIteration:
            self._is_over = True
            raise
        except ServingError as error:
            self._is_over = True
            return _failed(error)

    def cancel(self) -> None:
        """Cancels the request: no more responses follow."""
        if not self._is_over:
            self._is_over = True
            _close(self._responses)
