"""One neutral error taxonomy for the whole server.

Core code raises these; no transport number appears here. `stoker.server.rpc.status` maps each code once to HTTP and gRPC.
The message names what was wrong, what was expected and where; it never holds a path or an address of this host, because it
travels to clients.
"""

import enum
import re
from collections.abc import Iterable
from pathlib import Path


class ErrorCode(enum.Enum):
    """The kind of a failure. It decides who caused it and whether a retry may succeed."""

    INVALID_REQUEST = "invalid_request"
    TOO_LARGE = "too_large"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    UNSUPPORTED = "unsupported"
    BACKEND_FAILED = "backend_failed"
    INTERNAL = "internal"


class ServingError(Exception):
    """A failure with a code of the taxonomy.

    Attributes:
        code: The kind of failure.
        message: Text for the client.
        retry_after_s: When trying again makes sense, in seconds; None where it does not.
        is_noted: Whether the access log has it.
        is_logged: Whether a record of the log says it already.
        is_of_model: Whether the model's own code raised it.
    """

    code: ErrorCode = ErrorCode.INTERNAL

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.is_noted = False
        self.is_logged = False
        self.is_of_model = False


class InvalidRequest(ServingError):
    """The request contradicts the protocol or the model's signature."""

    code = ErrorCode.INVALID_REQUEST


class TooLarge(ServingError):
    """The request exceeds a size limit."""

    code = ErrorCode.TOO_LARGE


class Unauthenticated(ServingError):
    """No valid credentials came with the request."""

    code = ErrorCode.UNAUTHENTICATED


class Forbidden(ServingError):
    """The credentials do not allow this."""

    code = ErrorCode.FORBIDDEN


class RestrictedCall(Forbidden):
    """A call of a restricted kind without its key; a kind of its own because Triton's gRPC status for it is UNAVAILABLE."""


class NotFound(ServingError):
    """No such model or version."""

    code = ErrorCode.NOT_FOUND


class UnknownModel(NotFound):
    """No model of this name was ever known; a kind of its own because Triton responds 400 to it over HTTP, and 404 to a missing version."""


class Conflict(ServingError):
    """The request contradicts the present state, for example a load during a load."""

    code = ErrorCode.CONFLICT


class AlreadyExists(Conflict):
    """The resource that the request would create exists already; a kind of its own because Triton reports it as a client's mistake."""


class Overloaded(ServingError):
    """A queue or a budget is full: rejected at once, nothing was computed."""

    code = ErrorCode.OVERLOADED


class Unavailable(ServingError):
    """The model or the server does not serve now."""

    code = ErrorCode.UNAVAILABLE


class DeadlineExceeded(ServingError):
    """The request's time ran out."""

    code = ErrorCode.DEADLINE


class QueueTimeout(DeadlineExceeded):
    """The request waited longer than its queue policy allows; a kind of its own because Triton's status for it is UNAVAILABLE."""


class Cancelled(ServingError):
    """The client went away or took the request back."""

    code = ErrorCode.CANCELLED


class Unsupported(ServingError):
    """The request is well-formed, but the server does not support it."""

    code = ErrorCode.UNSUPPORTED


class BackendFailed(ServingError):
    """The backend raised, or broke its contract, while it ran this request."""

    code = ErrorCode.BACKEND_FAILED


class Internal(ServingError):
    """A defect of the server itself."""

    code = ErrorCode.INTERNAL


class ModelLoadError(ServingError):
    """A version cannot be loaded. Never reaches an inference client; shown in the index, the log and `stoker check`."""

    code = ErrorCode.INVALID_REQUEST


class LogLines(Exception):
    """Lines for the log, which shows them as they are where it shows the traceback of another exception (`exc_info`).

    Attributes:
        lines: The lines.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))


class BackendSettingError(Exception):
    """An operator's setting that a backend does not have or cannot take; ends the start, never reaches a client."""


def drop_tracebacks(error: BaseException) -> None:
    """Removes the tracebacks of `error` and of every error that led to it.

    Their frames hold the inputs and the result of the batch, and so the error itself: a cycle that only the garbage collector frees.
    """
    seen: set[int] = set()
    found: list[BaseException | None] = [error]
    while found:
        each = found.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            found += (each.__cause__, each.__context__)


#: A text may quote names out of the model file, which may be of any length; more of it does not help, and not all patterns are linear.
MAX_CHARACTERS = 4096


def tidied(error: Exception, folder: Path | None, without: Iterable[re.Pattern[str]]) -> str:
    """The text of `error` on one line, at most `MAX_CHARACTERS` of it, without what matches one of the patterns `without`, in their order.

    The path of `folder`, this host's copy of the version, is taken out too; an error without a text is called by its class.
    """
    text = str(error).strip()
    if folder is not None:
        text = text.replace(f"{folder}/", "").replace(str(folder), "the version folder")
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]}..."
    for pattern in without:
        text = pattern.sub("", text)
    return " ".join(text.split()) or type(error).__name__
