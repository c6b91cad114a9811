"""What the headers of a call bring to its request beside the message: forwarded parameters, and the trace that the caller is in."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stoker.server.core.request import InferRequest, ParameterValue
from stoker.server.core.trace import CallerTrace, read_caller
from stoker.server.protocols.kserve.header_forward import HeaderForward, with_forwarded


class RequestMetadata(NamedTuple):
    """What one call's headers bring.

    Attributes:
        parameters: By name, what becomes parameters.
        caller: The caller's trace; None: it names none.
    """

    parameters: Mapping[str, ParameterValue]
    caller: CallerTrace | None

    def apply_to(self, request: InferRequest) -> None:
        """Gives it to the request that the message made."""
        if self.parameters:
            request.parameters = with_forwarded(request.parameters, self.parameters)
        request.caller = self.caller


class HeaderReader:
    """Reads headers or metadata for what they bring.

    Attributes:
        is_on: Whether they may bring anything; if not, nobody need look at them.
    """

    def __init__(self, forward: HeaderForward | None = None, *, takes_callers: bool = False) -> None:
        """Takes what `forward` forwards, and where `takes_callers` is set `traceparent` and `tracestate`."""
        self._forward = forward or HeaderForward()
        self._takes_callers = takes_callers
        self.is_on = self._forward.is_on or takes_callers

    def read(self, headers: Mapping[str, str]) -> RequestMetadata | None:
        """What `headers`, names in lower case, bring; None: nothing."""
        if not self.is_on:
            return None
        caller = read_caller(headers.get("traceparent"), headers.get("tracestate")) if self._takes_callers else None
        parameters = self._forward.parameters(headers.items())
        return RequestMetadata(parameters, caller) if parameters or caller is not None else None

    def read_raw(self, headers: Iterable[tuple[bytes, bytes]]) -> RequestMetadata | None:
        """As `read`, of headers as HTTP has them; of several of one name the last."""
        if not self.is_on:
            return None
        return self.read({name.decode("latin-1"): value.decode("latin-1") for name, value in headers})
