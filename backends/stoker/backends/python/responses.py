"""`InferenceResponse` and the response sender of `triton_python_backend_utils`, and the end of one request."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from stoker.backends.api.batch import Outcome
from stoker.backends.api.errors import BackendFailed, Cancelled
from stoker.backends.api.request_share import RequestShare
from stoker.backends.api.rescheduling import Rescheduled
from stoker.backends.api.response_parameters import ParameterValue, check_response_parameters
from stoker.backends.python.errors import TritonError, TritonModelException, failure_of, serving_error
from stoker.backends.python.tensors import Tensor

RESPONSE_COMPLETE_FINAL: Final = 1
REQUEST_RELEASE_ALL: Final = 1
REQUEST_RELEASE_RESCHEDULE: Final = 2


def checked_parameters(parameters: Mapping[str, ParameterValue] | None) -> Mapping[str, ParameterValue]:
    """The parameters of a request.

    Raises:
        TritonModelException: a name is no text, or a value is not a bool, int, float or str.
    """
    if not parameters:
        return {}
    for name, value in parameters.items():
        if not isinstance(name, str) or not isinstance(value, (bool, int, float, str)):
            raise TritonModelException(f"parameter {name!r} takes a bool, int, float or str, not {type(value).__name__}")
    return parameters


class InferenceResponse:
    """One response: tensors, or an error."""

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> None:
        """Makes a response. The client gets the parameters of a response with tensors, but not those of an error.

        Raises:
            TritonModelException: an element of `output_tensors` is no `Tensor`, or `parameters` are not what a response can carry.
        """
        self._tensors = list(output_tensors)
        for tensor in self._tensors:
            if not isinstance(tensor, Tensor):
                raise TritonModelException(f"output_tensors takes Tensor objects, not {type(tensor).__name__}")
        self._error = error
        try:
            self._parameters = check_response_parameters(parameters) if parameters else {}
        except ValueError as failure:
            raise TritonModelException(str(failure)) from None

    def output_tensors(self) -> list[Tensor]:
        """The tensors."""
        return self._tensors

    def has_error(self) -> bool:
        """Whether the response is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """The error; None: there is none."""
        return self._error

    def parameters(self) -> str:
        """The parameters as a JSON object."""
        return json.dumps(self._parameters)

    @property
    def sent_parameters(self) -> Mapping[str, ParameterValue]:
        """The parameters by name."""
        return self._parameters


class RequestEnd:
    """The responses and the one end of a request. Safe to use from several threads.

    INVARIANT: of all ends only the first counts.

    Attributes:
        share: The request's share of the batch.
        has_sender: Whether the model has taken a response sender.
    """

    def __init__(
        self,
        share: RequestShare,
        take: Callable[[InferenceResponse, RequestShare], Mapping[str, Any]],
        is_decoupled: bool,
        lock: AbstractContextManager[Any],
    ) -> None:
        """`take` checks a response and returns its outputs by name; `lock`, a reentrant one, is of the whole batch.

        A request that is dropped may end in any allocation of a thread that holds the lock.
        """
        self.share = share
        self._take = take
        self._is_decoupled = is_decoupled
        self._lock = lock
        #: Made where a thread waits: most requests have ended when their batch is asked.
        self._ended: threading.Event | None = None
        self._response: Mapping[str, Any] | None = None
        self._is_gone = False
        self._outcome: Outcome | None = None
        self.has_sender = False

    @property
    def outcome(self) -> Outcome | None:
        """The end of the request; None: it runs."""
        return self._outcome

    @property
    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request or is gone."""
        return self._is_gone or self.share.is_cancelled

    def respond(self, response: InferenceResponse) -> None:
        """Takes a response of the model; waits while the client reads too slowly. Responses after the client is gone are dropped.

        A response with an error, or one that contradicts the signature, ends the request.
        """
        if self._outcome is not None or self.is_cancelled:
            return
        error = response.error()
        if error is not None:
            self.end(serving_error(error))
            return
        try:
            outputs = self._take(response, self.share)
        except Exception as failure:  # noqa: BLE001 - tensors are of the model: this request's failure
            self.end(failure_of(failure))
            return
        if not self._is_decoupled:
            if self._response is not None:
                self.end(BackendFailed("the model sent more than one response, and it is not decoupled"))
            self._response = outputs
        elif self.share.responses is not None and not self.share.responses.put(outputs):
            self._is_gone = True

    def end(self, outcome: Outcome | None = None) -> None:
        """Ends the request: with `outcome`, or with the responses that were sent."""
        with self._lock:
            if self._outcome is not None:
                return
            if outcome is not None:
                self._outcome = outcome
            elif self._is_decoupled:
                self._outcome = {}
            elif self._response is not None:
                self._outcome = self._response
            elif self.is_cancelled:
                self._outcome = Cancelled("the request was cancelled")
            else:
                self._outcome = BackendFailed("the model ended the request without a response")
            if self._ended is not None:
                self._ended.set()

    def reschedule(self, states: Mapping[str, Any]) -> None:
        """Ends this execution of the request: it is executed again, with `states` as those that the server keeps.

        Without effect on a request that has ended: the model sent the FINAL flag, or an error.
        """
        with self._lock:
            if self._response is not None:
                self.end(BackendFailed("the model sent a response to a request that it reschedules, and it is not decoupled"))
            self.end(Rescheduled(states))

    @property
    def is_rescheduled(self) -> bool:
        """Whether the request is executed again."""
        return isinstance(self._outcome, Rescheduled)

    def abandon(self) -> None:
        """Ends the request because the model has dropped it and its response sender."""
        self.end(BackendFailed("the model dropped the request before its response sender sent the FINAL flag"))

    def wait(self) -> Outcome:
        """Waits for the end of the request."""
        with self._lock:
            if self._outcome is None:
                self._ended = threading.Event()
        if self._ended is not None:
            self._ended.wait()
        assert self._outcome is not None
        return self._outcome


class Holder:
    """Both a request and its response sender refer to it: when the model has dropped both, the request ends."""

    def __init__(self, end: RequestEnd) -> None:
        self.end = end

    def __del__(self) -> None:
        self.end.abandon()


class InferenceResponseSender:
    """Sends the responses of one request, in any thread, also after `execute` has returned."""

    def __init__(self, holder: Holder) -> None:
        self._holder = holder
        self._is_closed = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Sends a response, ends the request, or both; waits while too many responses are unread.

        Args:
            response: The response; None: only the flags count.
            flags: `TRITONSERVER_RESPONSE_COMPLETE_FINAL` with the last response, or without a response after it; else 0.

        Raises:
            TritonModelException: the FINAL flag was sent before, the request was rescheduled, the flags are unknown, or there is neither a
                response nor the flag.
        """
        if self._is_closed:
            raise TritonModelException("the response sender has sent the FINAL flag: it sends no more responses")
        if self._holder.end.is_rescheduled:
            raise TritonModelException("the request was rescheduled: its next execution has a response sender of its own")
        if flags not in (0, RESPONSE_COMPLETE_FINAL):
            raise TritonModelException(f"flags takes 0 or TRITONSERVER_RESPONSE_COMPLETE_FINAL, not {flags}")
        if response is None and flags == 0:
            raise TritonModelException("send takes a response, the flag TRITONSERVER_RESPONSE_COMPLETE_FINAL, or both")
        if response is not None:
            if not isinstance(response, InferenceResponse):
                raise TritonModelException(f"send takes an InferenceResponse, not {type(response).__name__}")
            self._holder.end.respond(response)
        if flags == RESPONSE_COMPLETE_FINAL:
            self.close()

    def close(self) -> None:
        """Ends the request, as the FINAL flag does (Triton's older form)."""
        self._is_closed = True
        self._holder.end.end()

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request or is gone."""
        return self._holder.end.is_cancelled
