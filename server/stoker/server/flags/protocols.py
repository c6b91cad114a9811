"""Flags of the protocols that set more or less than one field: API key, restricted APIs, tracing."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from stoker.server.core.flag import BadValue, FlagError, Panel, option, path, whole_number
from stoker.server.observability.span_export import Collector, missing_packages
from stoker.server.observability.tracer import FILE, SPANS, TraceLevel, TraceSettings
from stoker.server.protocols.kserve.extensions import HeaderForward, PatternError
from stoker.server.protocols.settings import TraceStart
from stoker.server.rpc.restricted import GRPC_KEY_PREFIX, Category, Key
from stoker.server.server_config import ServerConfig

#: The variable that holds the key. The client and the `stoker` command send the key of the same variable.
API_KEY_VARIABLE: Final = "STOKER_API_KEY"
#: An HTTP header of this length passes common servers and proxies (nginx and Envoy allow 8 KiB or more for one header).
MAX_KEY_BYTES: Final = 4096
#: 16 random characters of base64 hold 96 bits.
SHORT_KEY_CHARS: Final = 16


@dataclass(frozen=True, kw_only=True)
class ApiKeyFlags:
    """The panel "API key"."""

    api_key_file: Annotated[
        Path | None,
        path(
            "api-key-file",
            panel=Panel.API_KEY,
            text=f"File with the key required for all calls except health checks (or {API_KEY_VARIABLE}).",
        ),
    ] = None

    def settings(self) -> dict[str, Any]:
        """The settings by their path from `ServerConfig`.

        Raises:
            FlagError: the file cannot be read, or contains no key.
        """
        if self.api_key_file is None:
            return {"api_key": None}
        source = f"--api-key-file={self.api_key_file}"
        try:
            with self.api_key_file.open("rb") as file:
                data = file.read(MAX_KEY_BYTES + 3)  # a key and its line end, or enough to see that it is longer
        except OSError as error:
            raise FlagError(f"{source}: the file cannot be read: {error.strerror}") from None
        return {"api_key": _checked(source, data.decode("latin-1").removesuffix("\n").removesuffix("\r"))}


def key_of_environment(environment: Mapping[str, str]) -> str | None:
    """The key in `STOKER_API_KEY`; None where the variable is not set.

    Raises:
        FlagError: the variable is set and contains no key. An empty variable is an error, so that a server that was meant to require a key
            never starts without one.
    """
    key = environment.get(API_KEY_VARIABLE)
    return None if key is None else _checked(API_KEY_VARIABLE, key)


def key_notices(key: str | None, *, is_exposed: bool) -> tuple[str, ...]:
    """Log lines for the start: that a key is required, and what weakens it.

    Args:
        key: The key; None: none is required.
        is_exposed: Whether a port other than loopback listens without TLS.
    """
    if key is None:
        return ()
    notices = ["every call but health checks needs the API key, sent as 'Authorization: Bearer KEY'"]
    if len(key) < SHORT_KEY_CHARS:
        notices.append(f"the API key has {len(key)} characters: a key of {SHORT_KEY_CHARS} or more random characters is hard to guess")
    if is_exposed:
        notices.append("the API key crosses the network unencrypted: TLS (--http-use-ssl, --grpc-use-ssl) protects it")
    return tuple(notices)


def _checked(source: str, key: str) -> str:
    if not key:
        raise FlagError(f"{source} is empty: expected a key")
    if len(key) > MAX_KEY_BYTES:
        raise FlagError(f"{source} holds more than {MAX_KEY_BYTES} bytes: expected one key")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise FlagError(f"{source} holds characters that a key cannot have: expected one line of printable ASCII without blanks")
    return key


def restricted_keys(flag: str, assignments: Sequence[str], *, what: str, prefix: str = "") -> Mapping[Category, Key]:
    """By category, the key that its calls must have.

    Args:
        flag: The flag's name, for errors.
        assignments: Its values.
        what: Triton's term for a category of this flag.
        prefix: Prefix of the header names.

    Raises:
        FlagError: another form, an unknown category, or a category in two groups. The value of a key is never shown.
    """
    keys: dict[Category, Key] = {}
    for assignment in assignments:
        names, _, rest = assignment.partition(":")
        header, _, value = rest.partition("=")
        if not (header and value):
            # In another form, any part may be the secret: the message shows only the beginning.
            shown = re.split("[:=]", assignment, maxsplit=1)
            hidden = "..." if len(shown) > 1 else ""
            raise FlagError(f"--{flag}={shown[0]}{hidden}: expected <{what}>[,<{what}>...]:<key>=<value>")
        if not (header.isascii() and header.replace("-", "").replace("_", "").isalnum()):
            raise FlagError(f"--{flag} {names}:{header}=...: a key's name is made of letters, digits, '-' and '_'")
        for name in names.split(","):
            if name not in set(Category):
                raise FlagError(f"--{flag}: unknown restricted {what} '{name}', expected {', '.join(Category)}")
            category = Category(name)
            if category in keys:
                raise FlagError(f"--{flag}: restricted {what} '{name}' can not be specified in multiple config groups")
            keys[category] = Key(f"{prefix}{header.lower()}", value)
    return keys


_MODES = (FILE, SPANS)
_FORM = (
    "triton,file=PATH; triton,log-frequency=N; opentelemetry,url=URL; opentelemetry,resource=KEY=VALUE; opentelemetry,bsp_...=N; "
    "or one of level=, rate=, count= and mode="
)
_NUMBERS = {"rate": whole_number(0, (1 << 32) - 1), "count": whole_number(-1, (1 << 31) - 1)}
_FREQUENCY = whole_number(0, (1 << 32) - 1)
#: OpenTelemetry's names for the settings of span batches, as Triton accepts them, by the field of `Collector`.
_BATCHING = {
    "bsp_max_queue_size": ("max_queue_size", whole_number(1, 1 << 20)),
    "bsp_schedule_delay": ("schedule_delay_ms", whole_number(1, 3_600_000)),
    "bsp_max_export_batch_size": ("max_export_batch_size", whole_number(1, 1 << 20)),
}


def trace_config(pieces: Sequence[str]) -> TraceStart:
    """Combines the values of the flag. A setting that may stand alone may also have its mode as a prefix.

    Raises:
        FlagError: a value has another form, modes are mixed, or a level is set without a destination.
    """
    modes: dict[str, str] = {}
    file: Path | None = None
    url = Collector().url
    resource = dict(Collector().resource)
    batching: dict[str, int] = {}
    levels: set[TraceLevel] = set()
    numbers = {"rate": 1000, "count": -1, "log-frequency": 0}
    for piece in pieces:
        mode, name, value = _split(piece)
        if mode:
            modes[mode] = piece
        if name == "file" and mode != SPANS:
            if not value:
                raise FlagError(f"--trace-config {piece}: the file's name is empty")
            file = Path(value)
        elif name == "level":
            levels = _with_level(levels, piece, value)
        elif name in ("rate", "count") or (name == "log-frequency" and mode != SPANS):
            numbers[name] = _number(piece, _NUMBERS.get(name, _FREQUENCY), value)
        elif name in _BATCHING and mode == SPANS:
            setting, read = _BATCHING[name]
            batching[setting] = _number(piece, read, value)
        elif name == "url" and mode == SPANS and value.startswith(("http://", "https://")):
            url = value
        elif name == "resource" and mode == SPANS and "=" in value:
            key, _, resource[key] = value.partition("=")
        elif name != "mode":
            raise FlagError(f"--trace-config {piece}: expected {_FORM}")
    if len(modes) > 1:
        raise FlagError(f"--trace-config {' and '.join(modes.values())}: modes {' and '.join(modes)} exclude each other")
    has_spans = SPANS in modes
    if numbers["rate"] == 0:
        # As in Triton: only traces that clients have begun.
        if not has_spans:
            raise FlagError("--trace-config rate=0: expected a whole number from 1 to 4294967295; 0 goes with mode opentelemetry only")
        numbers |= {"rate": 1, "count": 0}
    _check_destinations(levels, file, has_spans=has_spans)
    settings = TraceSettings(
        levels=tuple(level for level in TraceLevel if level in levels),
        rate=numbers["rate"],
        count=numbers["count"],
        log_frequency=numbers["log-frequency"],
    )
    collector = Collector(url=url, resource=resource, **batching)
    if collector.max_export_batch_size > collector.max_queue_size:
        raise FlagError(
            f"--trace-config opentelemetry,bsp_max_export_batch_size={collector.max_export_batch_size}: "
            f"no more than bsp_max_queue_size, {collector.max_queue_size}, can be sent at once"
        )
    return TraceStart(file=file, collector=collector if has_spans else None, settings=settings)


def _number(piece: str, read: Callable[[str], int], value: str) -> int:
    try:
        return read(value)
    except BadValue as error:
        raise FlagError(f"--trace-config {piece}: expected {error.expected}") from None


def _check_destinations(levels: set[TraceLevel], file: Path | None, *, has_spans: bool) -> None:
    """Rejects traces without a destination, and destinations that cannot be used."""
    if has_spans:
        if missing := missing_packages():
            raise FlagError(f"--trace-config mode={SPANS} needs packages that are not installed: {', '.join(missing)}")
        if TraceLevel.TENSORS in levels:
            raise FlagError(f"--trace-config level=TENSORS: spans carry no tensors, mode {SPANS} takes TIMESTAMPS only")
    elif levels and file is None:
        raise FlagError("--trace-config level=... has no effect without a file: give --trace-config triton,file=PATH too")
    if file is not None and not file.parent.is_dir():
        raise FlagError(f"--trace-config triton,file={file}: its folder does not exist")


def _split(piece: str) -> tuple[str, str, str]:
    """Mode (empty: none), name and value of one value of the flag."""
    name, equals, value = piece.partition("=")
    mode, comma, rest = name.partition(",")
    if comma:
        name = rest
    else:
        mode = value if name == "mode" else ""
    if not equals or not name:
        raise FlagError(f"--trace-config {piece}: expected {_FORM}")
    if (comma or name == "mode") and mode not in _MODES:
        raise FlagError(f"--trace-config {piece}: unknown mode '{mode}', expected {' or '.join(_MODES)}")
    return mode, name, value


def _with_level(levels: set[TraceLevel], piece: str, value: str) -> set[TraceLevel]:
    """Adds a level to the levels given before; OFF removes all."""
    if value == "OFF":
        return set()
    if value not in TraceLevel.__members__:
        raise FlagError(f"--trace-config {piece}: expected OFF, TIMESTAMPS or TENSORS")
    return {*levels, TraceLevel(value)}


@dataclass(frozen=True, kw_only=True)
class KServeFlags:
    """The panel "KServe v2 extensions"."""

    trace_config: Annotated[
        list[str] | None,
        option(
            "trace-config",
            metavar="NAME=V",
            panel=Panel.KSERVE,
            text="Tracing, in pieces: triton,file=F; opentelemetry,url=U; level=L; rate=N; count=N.",
            # A user and password in the address of the collector.
            holds_secret=lambda text: "url=" in text and "@" in text,
        ),
    ] = None
    http_restricted_api: Annotated[
        list[str] | None,
        option(
            "http-restricted-api",
            metavar="APIS:K=V",
            panel=Panel.KSERVE,
            text="Serve these categories over HTTP only with header K: V.",
            holds_secret=lambda _text: True,
        ),
    ] = None
    grpc_restricted_protocol: Annotated[
        list[str] | None,
        option(
            "grpc-restricted-protocol",
            metavar="APIS:K=V",
            panel=Panel.KSERVE,
            text="The same over gRPC; K is preceded by triton-grpc-protocol-.",
            holds_secret=lambda _text: True,
        ),
    ] = None

    def settings(self) -> dict[str, Any]:
        """The settings by their path from `ServerConfig`.

        Raises:
            FlagError: a value has another form.
        """
        http, grpc = self.http_restricted_api or [], self.grpc_restricted_protocol or []
        return {
            "kserve.trace": trace_config(self.trace_config or []),
            "kserve.http_restricted": restricted_keys("http-restricted-api", http, what="api"),
            "kserve.grpc_restricted": restricted_keys("grpc-restricted-protocol", grpc, what="protocol", prefix=GRPC_KEY_PREFIX),
        }


def check_protocols(config: ServerConfig) -> None:
    """Rejects invalid header patterns, and a folder for model operations that is unused or missing."""
    for port, pattern in (("http", config.kserve.http_forward_pattern), ("grpc", config.kserve.grpc_forward_pattern)):
        try:
            HeaderForward(pattern)
        except PatternError as error:
            raise FlagError(f"--{port}-header-forward-pattern={pattern}: {error}") from None
    root = config.adlik.operate_root
    if root is None:
        return
    if not config.adlik.allow_operate:
        raise FlagError("--model-operate-root has no effect without --allow-model-operate")
    if not root.is_dir():
        raise FlagError(f"--model-operate-root={root}: expected an existing folder")
