"""`RequestShare`: a request's share of a batch with the request's own attributes, for models that look at requests one by one."""

from typing import Protocol

from stoker.backends.api.batch import Share


class SequencePlace(Protocol):
    """A request's place in a sequence."""

    @property
    def id(self) -> int | str:
        """The sequence; 0: the client named none."""

    @property
    def is_start(self) -> bool:
        """Whether it is the first request of the sequence."""

    @property
    def is_end(self) -> bool:
        """Whether it is the last request of the sequence."""


class RequestShare(Share, Protocol):
    """The interface of one request's share of a batch, for a `BatchProcessor` that does not join requests.

    The server's requests have these attributes, and `BatchItem`, which is for warm-up, as well.
    """

    @property
    def model_name(self) -> str:
        """The name of the model that the client asked for; empty in a warm-up."""

    @property
    def model_version(self) -> int | None:
        """The version that the client asked for; None: it named none."""

    @property
    def request_id(self) -> str:
        """The client's id; empty: none."""

    @property
    def priority(self) -> int:
        """0: the model's default; 1: the highest."""

    @property
    def timeout_us(self) -> int:
        """The request's queue timeout, microseconds; 0: none."""

    @property
    def deadline_ns(self) -> int | None:
        """The client's deadline on the monotonic scale of `Clock.now_ns`, nanoseconds; None: none."""

    @property
    def sequence(self) -> SequencePlace | None:
        """The request's place in its sequence; None: it has none."""

    @property
    def trace_context(self) -> str:
        """The OpenTelemetry context of the request, a JSON object of the headers `traceparent` and `tracestate`; empty: it has none."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request or is gone. It may become true while the request runs, in any thread."""
