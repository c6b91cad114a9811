"""`--trace-config`, given in pieces: `MODE,NAME=VALUE` for the settings of a mode, `NAME=VALUE` for those of all."""

from collections.abc import Callable, Sequence
from pathlib import Path

from stoker.server.flags.values import BadValue, FlagError, whole_number
from stoker.server.observability.span_export import Collector, missing_packages
from stoker.server.observability.tracer import FILE, SPANS, TraceLevel, TraceSettings
from stoker.server.protocols.kserve.settings import TraceStart

_MODES = (FILE, SPANS)
_FORM = (
    "triton,file=PATH; triton,log-frequency=N; opentelemetry,url=URL; opentelemetry,resource=KEY=VALUE; opentelemetry,bsp_...=N; "
    "or one of level=, rate=, count= and mode="
)
_NUMBERS = {"rate": whole_number(0, (1 << 32) - 1), "count": whole_number(-1, (1 << 31) - 1)}
_FREQUENCY = whole_number(0, (1 << 32) - 1)
#: OpenTelemetry's names for how spans are batched, as Triton takes them, by the field of `Collector`.
_BATCHING = {
    "bsp_max_queue_size": ("max_queue_size", whole_number(1, 1 << 20)),
    "bsp_schedule_delay": ("schedule_delay_ms", whole_number(1, 3_600_000)),
    "bsp_max_export_batch_size": ("max_export_batch_size", whole_number(1, 1 << 20)),
}


def trace_config(pieces: Sequence[str]) -> TraceStart:
    """What the pieces say together. Settings that may stand alone may also stand behind their mode.

    Raises:
        FlagError: a piece has another form, modes are mixed, or a level is set and traces have nowhere to go.
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
        # As Triton has it: only traces that clients have begun.
        if not has_spans:
            raise FlagError("--trace-config rate=0: expected a whole number from 1 to 4294967295; 0 goes with mode opentelemetry only")
        numbers |= {"rate": 1, "count": 0}
    _check_places(levels, file, has_spans=has_spans)
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


def _check_places(levels: set[TraceLevel], file: Path | None, *, has_spans: bool) -> None:
    """Refuses traces that would go nowhere, or where they cannot be carried."""
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
    """Mode (empty: none is named), name and value of a piece."""
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
    """Levels may be given one after another; OFF takes all back."""
    if value == "OFF":
        return set()
    if value not in TraceLevel.__members__:
        raise FlagError(f"--trace-config {piece}: expected OFF, TIMESTAMPS or TENSORS")
    return {*levels, TraceLevel(value)}
