"""The errors of the client as one tree: catch a leaf to react, or `StokerError` to report.

    StokerError
     +- ConnectionFailed          no response came; `request_may_have_run` says whether the server could have seen the request
     +- InvalidRequest            the request contradicts the protocol or the model's signature (also raised before sending)
     |   +- TooLarge              a message is over a size limit
     +- Unauthenticated           no valid credentials
     +- Forbidden                 the credentials do not allow this
     +- NotFound                  no such model, version or route
     +- Conflict                  contradicts the server's present state
     +- Unavailable               the model or the server does not serve now
     |   +- Overloaded            rejected because a queue or a budget is full: nothing was computed
     +- DeadlineExceeded          the call's `timeout_s`, or the server's own limit, ran out
     +- Cancelled                 the call was cancelled
     +- Unsupported               well-formed, but not offered by this server or over this protocol
     +- InvalidSetting            the address or a setting of the client is unusable; a ValueError too
     +- ClientClosed              the client was closed; a RuntimeError too
     +- ForkedClient              a gRPC client that has connected is used in a child of its process; a RuntimeError too
     +- ServerError               the server or its backend failed
         +- InvalidResponse       the response does not keep to the protocol

Every error carries `message`, and `status`: the HTTP status or the gRPC status name it came from, None where it arose in this process.
"""


class StokerError(Exception):
    """Any failure of a call.

    Attributes:
        message: The reason: the server's text if it responded.
        status: `404`, `NOT_FOUND`, ...: the protocol's status; None if the error arose in this process.
        retry_after_s: The server's retry-after, seconds; None if it sent none.
    """

    def __init__(self, message: str, *, status: int | str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.retry_after_s = retry_after_s


class ConnectionFailed(StokerError):
    """No response was received: the server could not be reached, or the connection broke.

    Attributes:
        request_may_have_run: False if the request certainly never left this process.
    """

    def __init__(self, message: str, *, request_may_have_run: bool, status: int | str | None = None) -> None:
        super().__init__(message, status=status)
        self.request_may_have_run = request_may_have_run


class InvalidRequest(StokerError):
    """The request contradicts the protocol or the model's signature."""


class TooLarge(InvalidRequest):
    """A request or a response is over a size limit."""


class Unauthenticated(StokerError):
    """The request had no valid credentials."""


class Forbidden(StokerError):
    """The credentials do not allow this."""


class NotFound(StokerError):
    """No such model, version or route."""


class Conflict(StokerError):
    """The request contradicts the server's present state."""


class Unavailable(StokerError):
    """The model or the server does not serve now."""


class Overloaded(Unavailable):
    """A queue or a budget of the server is full: rejected at once, nothing was computed. See `retry_after_s`."""


class DeadlineExceeded(StokerError):
    """The deadline of the call expired, here or at the server."""


class Cancelled(StokerError):
    """The call was cancelled."""


class Unsupported(StokerError):
    """Well-formed, but not offered by this server or over this protocol."""


class InvalidSetting(StokerError, ValueError):
    """A client's address or setting is invalid, or contradicts another one."""


class ClientClosed(StokerError, RuntimeError):
    """The client was closed before the call, or during it."""

    def __init__(self) -> None:
        super().__init__("this client is closed")


class ForkedClient(StokerError, RuntimeError):
    """A gRPC client that has connected is used in a forked process. Nothing was sent."""

    def __init__(self, pid: int) -> None:
        super().__init__(
            f"this client has connected in process {pid}, from which the present process was forked, and gRPC connections do not survive a "
            "fork: make the client in the child, or start processes by the method 'spawn'"
        )


class ServerError(StokerError):
    """The server or its backend failed."""


class InvalidResponse(ServerError):
    """The server's response violates the protocol."""
