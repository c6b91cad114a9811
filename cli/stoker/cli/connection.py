"""The connection of a command: address, TLS and request headers; and server errors as messages of the command line."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stoker.cli.output import CommandFailed, ExitCode

#: Characters valid in HTTP and gRPC header names; gRPC's binary metadata (`-bin`) has no text form.
_NAME = re.compile(r"[A-Za-z0-9_.-]+(?<!-bin)")
_VALUE = re.compile(r"[ -~]*")
#: Headers that the protocols set themselves; another value would contradict the message.
_RESERVED = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "host",
        "inference-header-content-length",
        "te",
        "transfer-encoding",
    }
)


def read_headers(assignments: Sequence[str] | None, api_key: str | None) -> dict[str, str]:
    """The headers of the options and the API key, by name in lower case.

    Args:
        assignments: The values `NAME=VALUE`; None: none.
        api_key: The key to send as `authorization`; None: none.

    Raises:
        CommandFailed: another form, a duplicate name, or a name reserved by the protocols. Values are never shown.
    """
    headers: dict[str, str] = {}
    for assignment in assignments or ():
        name, equals, value = assignment.partition("=")
        name = name.lower()
        if not (equals and _NAME.fullmatch(name)):
            shown = f" {name}" if equals else ""
            raise CommandFailed(
                f"--header{shown}: expected NAME=VALUE, the name of letters, digits, '-', '_' and '.', not ending in -bin", ExitCode.USAGE
            )
        if not _VALUE.fullmatch(value):
            raise CommandFailed(f"--header {name}: its value must be printable ASCII", ExitCode.USAGE)
        if name in _RESERVED or name.startswith("grpc-"):
            raise CommandFailed(f"--header {name}: the protocol itself says this one", ExitCode.USAGE)
        if name in headers:
            raise CommandFailed(f"--header {name} is given twice", ExitCode.USAGE)
        headers[name] = value
    if api_key is not None and "authorization" in headers:
        raise CommandFailed(
            "--api-key is sent as the header authorization: give it, or --header authorization=..., not both", ExitCode.USAGE
        )
    if api_key is not None:
        headers["authorization"] = f"Bearer {api_key}"
    return headers


if TYPE_CHECKING:
    from stoker_client import TlsConfig

#: The variables of the environment, by the field of `TlsConfig` that each sets.
VARIABLES = {"ca": "STOKER_TLS_CA", "cert": "STOKER_TLS_CERT", "key": "STOKER_TLS_KEY", "server_name": "STOKER_TLS_SERVER_NAME"}
_SECURE = ("grpcs://", "https://")


def tls_for(url: str) -> "TlsConfig | None":
    """The TLS settings of the environment for a `grpcs://` or `https://` address; None: there are none, or the address is plain.

    Raises:
        CommandFailed: a certificate without its key, or a file that cannot be read.
    """
    given = {field: value for field, variable in VARIABLES.items() if (value := os.environ.get(variable))}
    if not given or not url.startswith(_SECURE):
        return None
    from stoker_client import TlsConfig

    for field in ("ca", "cert", "key"):
        if field in given and not os.access(given[field], os.R_OK):
            raise CommandFailed(f"{VARIABLES[field]}={given[field]}: no such file, or it cannot be read", ExitCode.USAGE)
    if ("cert" in given) != ("key" in given):
        raise CommandFailed("STOKER_TLS_CERT and STOKER_TLS_KEY belong together: give both, or neither", ExitCode.USAGE)
    return TlsConfig(**given)


if TYPE_CHECKING:
    from stoker_client import Client


_CAUSES = (
    ("connection refused", "connection refused; is the server running?"),
    (
        "expected settings frame|http1.x server|illegal (request|status) line",
        "the URL's scheme does not match the port: grpc:// goes to the gRPC port (8500 unless set), http:// to the HTTP port (8501)",
    ),
    ("certificate.verify.failed", "the server's certificate is not trusted: STOKER_TLS_CA names the file of its authority"),
    ("wrong.version.number", "the port does not speak TLS: use grpc:// or http://"),
    ("name or service not known|domain name not found|hostname lookup error", "no such host is known"),
)
#: The end of rejections of a load or unload in the control modes poll and none.
_IS_UNCONTROLLED = re.compile("not allowed if polling is enabled|the list of models is fixed")
#: The prefix of the address of a Unix-domain socket; the rest begins with "/" or "//".
SOCKET_SCHEME = re.compile(r"((grpc|http)\+)?unix:")
_NOT_SERVING = re.compile(r"'(?P<name>[^']+)' (has no available versions|version \d+ is not at ready state)")


@contextmanager
def connected(url: str, api_key: str | None, timeout_s: float, headers: Sequence[str] | None = None) -> Iterator["Client"]:
    """Opens a client of the server at `url` for the context, which sends `headers` (each `NAME=VALUE`) with every call.

    Raises:
        CommandFailed: the address or a header is invalid, the server cannot be reached, or a call in the context failed.
    """
    sent = read_headers(headers, api_key)
    with reported_failures(url) as failures:
        import stoker_client

        if "://" not in url and ":" in url and not SOCKET_SCHEME.match(url):
            url = f"grpc://{url}"
        try:
            retry = stoker_client.RetryPolicy(max_attempts=2)
            client = stoker_client.connect(url, headers=sent, timeout_s=timeout_s, retry=retry, tls=tls_for(url))
        except ValueError as error:
            raise CommandFailed(f"--url: {error}", ExitCode.USAGE) from error
        failures.url, failures.client = url, client
        yield client


@dataclass(slots=True)
class Failures:
    """The data for the text of a failure.

    Attributes:
        url: The server's address.
        client: The client that reads the reasons; closed at the end. None: no client.
    """

    url: str
    client: "Client | None" = None


@contextmanager
def reported_failures(url: str) -> Iterator[Failures]:
    """Converts errors of calls in the context to errors of the command.

    Raises:
        CommandFailed: the server cannot be reached, or a call failed.
    """
    # gRPC's own log lines would appear between the lines of the command.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    import stoker_client

    failures = Failures(url)
    try:
        yield failures
    except stoker_client.ConnectionFailed as error:
        raise CommandFailed(f"cannot connect to {failures.url}: {_cause(error.message)}", ExitCode.CANNOT_CONNECT) from error
    except stoker_client.StokerError as error:
        text = error.message.removeprefix("[request id: <id_unknown>] ") or type(error).__name__
        is_own_limit = isinstance(error, stoker_client.DeadlineExceeded) and not isinstance(error.status, int)
        limit = "; --timeout SECONDS sets the limit of a call" if is_own_limit else ""
        raise CommandFailed(text + limit + _hint(text) + ("" if failures.client is None else _reasons(failures.client, text))) from error
    finally:
        if failures.client is not None:
            failures.client.close()


def _cause(text: str) -> str:
    """The cause in a library's error text about a failed connection."""
    for sign, cause in _CAUSES:
        if re.search(sign, text, re.IGNORECASE):
            return cause
    return text


def _hint(text: str) -> str:
    """The advice for an error whose text is meant for other clients."""
    if "requires an API key" in text:
        return " (here: --api-key KEY, or the variable STOKER_API_KEY)"
    return "; the server allows it with --model-control-mode=explicit" if _IS_UNCONTROLLED.search(text) else ""


def _reasons(client: "Client", text: str) -> str:
    """Why a model has no version that serves, from the repository index; empty for other failures."""
    import stoker_client

    named = _NOT_SERVING.search(text)
    if named is None:
        return ""
    try:
        # The server's text may contain a reason already.
        entries = [entry for entry in client.index() if entry["name"] == named["name"] and entry["reason"] and entry["reason"] not in text]
    except stoker_client.StokerError:
        return ""  # the first error is the one to report
    return "".join(f"; version {entry['version']}: {entry['reason']}" if entry["version"] else f"; {entry['reason']}" for entry in entries)
