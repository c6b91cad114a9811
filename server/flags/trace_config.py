"""`--trace-config`, given in pieces: `MODE,NAME=VALUE` for the settings of a mode, `NAME=VALUE` for those of all."""

from collections.abc import Sequence
from pathlib import Path

from server.flags.values import BadValue, FlagError, whole_number
from server.frontends.kserve.settings import TraceStart
from server.observability.tracer import TraceLevel, TraceSettings

_FORM = "triton,file=PATH; triton,log-frequency=N; or one of level=, rate=, count= and mode="
_NUMBERS = {"rate": whole_number(1, (1 << 32) - 1), "count": whole_number(-1, (1 << 31) - 1)}
_FREQUENCY = whole_number(0, (1 << 32) - 1)


def trace_config(pieces: Sequence[str]) -> TraceStart:
    """What the pieces say together. Settings that may stand alone may also stand behind their mode.

    Raises:
        FlagError: a piece has another form, or a level is set without a file.
    """
    file: Path | None = None
    levels: set[TraceLevel] = set()
    numbers = {"rate": 1000, "count": -1, "log-frequency": 0}
    for piece in pieces:
        name, value = _split(piece)
        if name == "file":
            if not value:
                raise FlagError(f"--trace-config {piece}: the file's name is empty")
            file = Path(value)
        elif name == "level":
            levels = _with_level(levels, piece, value)
        elif name in ("rate", "count", "log-frequency"):
            try:
                numbers[name] = _NUMBERS.get(name, _FREQUENCY)(value)
            except BadValue as error:
                raise FlagError(f"--trace-config {piece}: expected {error.expected}") from None
        elif name != "mode":
            raise FlagError(f"--trace-config {piece}: expected {_FORM}")
    if levels and file is None:
        raise FlagError("--trace-config level=... has no effect without a file: give --trace-config triton,file=PATH too")
    if file is not None and not file.parent.is_dir():
        raise FlagError(f"--trace-config triton,file={file}: its folder does not exist")
    settings = TraceSettings(
        levels=tuple(level for level in TraceLevel if level in levels),
        rate=numbers["rate"],
        count=numbers["count"],
        log_frequency=numbers["log-frequency"],
    )
    return TraceStart(file=file, settings=settings)


def _split(piece: str) -> tuple[str, str]:
    """Name and value of a piece whose mode, if it names one, is offered."""
    name, equals, value = piece.partition("=")
    mode, comma, rest = name.partition(",")
    if comma:
        name = rest
    elif name == "mode":
        mode = value
    if not equals or not name:
        raise FlagError(f"--trace-config {piece}: expected {_FORM}")
    if mode == "opentelemetry":
        raise FlagError(f"--trace-config {piece}: mode opentelemetry is not offered; traces are written by mode triton")
    if (comma or name == "mode") and mode != "triton":
        raise FlagError(f"--trace-config {piece}: unknown mode '{mode}', expected triton")
    return name, value


def _with_level(levels: set[TraceLevel], piece: str, value: str) -> set[TraceLevel]:
    """Levels may be given one after another; OFF takes all back."""
    if value == "OFF":
        return set()
    if value not in TraceLevel.__members__:
        raise FlagError(f"--trace-config {piece}: expected OFF, TIMESTAMPS or TENSORS")
    return {*levels, TraceLevel(value)}
