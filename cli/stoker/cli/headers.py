"""Headers of the user's own, `--header NAME=VALUE`: over gRPC they are metadata. Keys of restricted APIs travel so."""

import re
from collections.abc import Sequence

from stoker.cli.failure import CommandFailed, ExitCode

#: What both HTTP and gRPC take; gRPC's binary metadata (`-bin`) has no text form.
_NAME = re.compile(r"[A-Za-z0-9_.-]+(?<!-bin)")
_VALUE = re.compile(r"[ -~]*")
#: Said by the protocols themselves; another value would contradict the message that it belongs to.
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
    """What the options say, by name in lower case, the API key among them.

    Args:
        assignments: Each `NAME=VALUE`; None: none.
        api_key: The key that is sent as `authorization`; None: none is.

    Raises:
        CommandFailed: another form, a name that stands twice, or one that is not the user's to say. Values are never shown.
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
