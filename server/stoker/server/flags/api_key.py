"""The API key that clients must bring: from a file or from `STOKER_API_KEY`, never from the command line, which other users can read."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from stoker.server.flags.declare import path
from stoker.server.flags.values import FlagError

#: The variable that holds the key itself. The client and the `stoker` command send the key of the same variable.
API_KEY_VARIABLE: Final = "STOKER_API_KEY"
#: An HTTP header of this length passes every server and proxy (nginx and Envoy allow 8 KiB for one header or more).
MAX_KEY_BYTES: Final = 4096
#: 16 random characters of base64 hold 96 bits.
SHORT_KEY_CHARS: Final = 16


@dataclass(frozen=True, kw_only=True)
class ApiKeyFlags:
    """The panel "API key"."""

    api_key_file: Annotated[
        Path | None,
        path("api-key-file", panel="API key", text=f"File with the key that every call but health checks needs (or {API_KEY_VARIABLE})."),
    ] = None

    def settings(self) -> dict[str, Any]:
        """Fields of `ServerConfig`.

        Raises:
            FlagError: the file cannot be read, or holds no key.
        """
        if self.api_key_file is None:
            return {"api_key": None}
        place = f"--api-key-file={self.api_key_file}"
        try:
            with self.api_key_file.open("rb") as file:
                data = file.read(MAX_KEY_BYTES + 3)  # a key and its line end, or proof that it is longer
        except OSError as error:
            raise FlagError(f"{place}: the file cannot be read: {error.strerror}") from None
        return {"api_key": _checked(place, data.decode("latin-1").removesuffix("\n").removesuffix("\r"))}


def key_of_environment(environment: Mapping[str, str]) -> str | None:
    """The key in `STOKER_API_KEY`; None where the variable is not set.

    Raises:
        FlagError: the variable is set and holds no key. An empty variable is an error: a server that was meant to require a key never
            starts without one.
    """
    key = environment.get(API_KEY_VARIABLE)
    return None if key is None else _checked(API_KEY_VARIABLE, key)


def key_notices(key: str | None, *, is_exposed: bool) -> tuple[str, ...]:
    """Lines for the log of the start: that a key is required, and what weakens it.

    Args:
        key: The key; None: none is required.
        is_exposed: Whether a port listens beyond this machine without TLS.
    """
    if key is None:
        return ()
    notices = ["every call but health checks needs the API key, sent as 'Authorization: Bearer KEY'"]
    if len(key) < SHORT_KEY_CHARS:
        notices.append(f"the API key has {len(key)} characters: a key of {SHORT_KEY_CHARS} or more random characters is hard to guess")
    if is_exposed:
        notices.append("the API key crosses the network unencrypted: TLS (--http-use-ssl, --grpc-use-ssl) protects it")
    return tuple(notices)


def _checked(place: str, key: str) -> str:
    if not key:
        raise FlagError(f"{place} is empty: expected a key")
    if len(key) > MAX_KEY_BYTES:
        raise FlagError(f"{place} holds more than {MAX_KEY_BYTES} bytes: expected one key")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise FlagError(f"{place} holds characters that a key cannot have: expected one line of printable ASCII without blanks")
    return key
