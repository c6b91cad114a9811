"""Which clients may change the log and trace settings, and how they read and change them.

Names, forms and texts are Triton's. Clients cannot change the log file and the trace destination, because the server would write to a file
of their choice. A trace setting of one model that is not set, or was cleared by null, has the value for all models. A setting for all
models that is not set has the value of the server's start.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from stoker.backends.api.errors import Forbidden, InvalidRequest, TooLarge, Unsupported
from stoker.server.core.limits import Limits
from stoker.server.observability.settings import LogSettings
from stoker.server.observability.tracer import FILE, TraceLevel, Tracer, TraceSettings
from stoker.server.rpc.restricted import Category, Restrictions


class SettingsChanges:
    """Authorises changes of log and trace settings.

    A change affects all clients: it can hide errors from the log, or write other clients' inputs to a trace file.
    """

    def __init__(self, is_allowed: bool | None, *, is_local: bool) -> None:
        """Sets the policy.

        Args:
            is_allowed: The operator's setting. None: local clients, and clients with a key, are allowed.
            is_local: Whether the server listens on loopback addresses and Unix-domain sockets alone.
        """
        self._is_allowed = is_allowed
        self._is_local = is_local

    def is_open(self, category: Category, restrictions: Restrictions) -> bool:
        """Whether clients of other machines may change settings of `category` without a key."""
        return bool(self._is_allowed) and not self._is_local and not restrictions.restricts(category)

    def require(self, category: Category, restrictions: Restrictions) -> None:
        """Checks a call that changes settings of `category`, on a port with `restrictions`.

        Raises:
            Forbidden: the client may not change them.
        """
        is_allowed = self._is_allowed
        if is_allowed is None:
            is_allowed = self._is_local or restrictions.restricts(category)
        if not is_allowed:
            raise Forbidden(
                f"clients may not change the {category} settings of this server: it must listen on loopback addresses alone, require a key "
                f"for '{category}', or be started with --allow-settings-changes"
            )


_LOG_FILE_IS_FIXED = "log file location can not be updated through network protocol"
#: Formats of a log line by their name on the wire. Triton's two formats print the time differently; this server always prints ISO 8601.
FORMATS: dict[str, Literal["text", "json"]] = {"default": "text", "ISO8601": "text", "text": "text", "json": "json"}
_SWITCHES = {"log_info": "info", "log_warning": "warning", "log_error": "error"}
_LOG_NAMES = ("log_file", *_SWITCHES, "log_verbose_level", "log_format")
_UINT32_MAX = (1 << 32) - 1
_log = logging.getLogger("stoker.protocols")


class ChangeableLogs(Protocol):
    """The process's logs."""

    is_json: bool

    @property
    def settings(self) -> LogSettings:
        """The current settings."""

    def change(self, settings: LogSettings) -> None:
        """Applies `settings`, except the file."""


class LogControl:
    """Reads and changes the log settings. Confined to: the event loop."""

    def __init__(self, logs: ChangeableLogs) -> None:
        self._logs = logs
        self._format = "json" if logs.is_json else "default"

    def read(self) -> dict[str, bool | int | str]:
        """All settings, in Triton's order."""
        now = self._logs.settings
        return {
            "log_file": "" if now.file is None else str(now.file),
            "log_info": now.info,
            "log_warning": now.warning,
            "log_error": now.error,
            "log_verbose_level": now.verbose,
            "log_format": self._format,
        }

    def update(self, given: Mapping[str, Any]) -> None:
        """Changes the settings in `given`, all or none; None leaves a setting unchanged.

        Raises:
            Unsupported: the log file is among them. InvalidRequest: a setting is unknown, or a value has a wrong type.
        """
        changes: dict[str, Any] = {}
        form = self._format
        for name, value in given.items():
            if name not in _LOG_NAMES:
                raise InvalidRequest(f"unknown log setting '{name[:128]}', expected one of {', '.join(_LOG_NAMES)}")
            if value is None:
                continue
            if name == "log_file":
                raise Unsupported(_LOG_FILE_IS_FIXED)
            if name in _SWITCHES:
                if not isinstance(value, bool):
                    raise InvalidRequest(f"expect boolean for '{name}'")
                changes[_SWITCHES[name]] = value
            elif name == "log_verbose_level":
                if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _UINT32_MAX:
                    raise InvalidRequest(f"expect int32 for '{name}'")
                changes["verbose"] = value
            else:
                if not isinstance(value, str):
                    raise InvalidRequest(f"expect string for '{name}'")
                if value not in FORMATS:
                    raise InvalidRequest(f"invalid argument for log_format, got: {value[:128]}")
                changes["format"], form = FORMATS[value], value
        if not changes:
            return
        # Logged before the change applies, so that a client cannot switch log lines off unseen.
        _log.warning("a client changes log settings", extra={name: value for name, value in given.items() if value is not None})
        now = self._logs.settings
        self._logs.change(
            LogSettings(
                verbose=changes.get("verbose", now.verbose),
                info=changes.get("info", now.info),
                warning=changes.get("warning", now.warning),
                error=changes.get("error", now.error),
                format=changes.get("format", now.format),
                file=now.file,
            )
        )
        self._format = form


_TRACE_FILE_IS_FIXED = "trace file location can not be updated through network protocol"
_OFF = "OFF"
_LEVELS = frozenset(level.value for level in TraceLevel)
#: Integer settings by their name on the wire: the field, and the bounds of an unsigned or signed 32-bit integer.
_NUMBERS = {
    "trace_rate": ("rate", 0, (1 << 32) - 1),
    "trace_count": ("count", -1, (1 << 31) - 1),
    "log_frequency": ("log_frequency", 0, (1 << 32) - 1),
}
_TRACE_NAMES = ("trace_file", "trace_level", *_NUMBERS, "trace_mode")
_Changes = dict[str, Any]
Given = Mapping[str, Sequence[str] | None]
"""By setting, its values; nothing or None clears it."""


class TraceControl:
    """Reads and changes the trace settings. Confined to: the event loop."""

    def __init__(self, tracer: Tracer, defaults: TraceSettings, limits: Limits, is_model_ready: Callable[[str], bool]) -> None:
        """`defaults` are the settings of the server's start."""
        self._tracer = tracer
        self._defaults = defaults
        self._limits = limits
        self._is_model_ready = is_model_ready
        # The changed settings by model; "": for all models.
        self._made: dict[str, _Changes] = {}

    def read(self, model: str) -> dict[str, list[str]]:
        """The settings of `model`, or for all models where it is empty, in Triton's order.

        Raises:
            InvalidRequest: no such model is READY.
        """
        self._check_model(model)
        settings = self._effective(model, self._made)
        shown = {
            "trace_level": [level.value for level in settings.levels] or [_OFF],
            "trace_rate": [str(settings.rate)],
            "trace_count": [str(self._tracer.left(model))],
        }
        if self._tracer.mode == FILE:
            shown["log_frequency"] = [str(settings.log_frequency)]
            shown["trace_file"] = ["" if self._tracer.path is None else str(self._tracer.path)]
        shown["trace_mode"] = [self._tracer.mode]
        return shown

    def update(self, model: str, given: Given) -> None:
        """Changes the settings in `given`, all or none.

        Raises:
            Unsupported: the file or the mode is among them. TooLarge: too many models have separate settings.
            InvalidRequest: no such model is READY, a setting is unknown, a value is malformed, or the settings contradict each other.
        """
        self._check_model(model)
        changes = dict(self._made.get(model, {}))
        for name, values in given.items():
            field, value = _read(name, values, self._tracer.mode)
            if value is None:
                changes.pop(field, None)
            else:
                changes[field] = value
        made = {**self._made, model: changes}
        if not changes:
            del made[model]
        if len(made) > self._limits.traced_models:
            raise TooLarge(f"{len(self._made)} models have trace settings of their own, more are not allowed: clear what is not needed")
        settings = {name: self._effective(name, made) for name in {"", *made}}
        for each in settings.values():
            self._check(each)
        self._made = made
        of_all = settings.pop("")
        self._tracer.set(of_all, settings)

    def _effective(self, model: str, made: Mapping[str, _Changes]) -> TraceSettings:
        default = self._defaults
        fields = {"levels": default.levels, "rate": default.rate, "count": default.count, "log_frequency": default.log_frequency}
        return TraceSettings(**{**fields, **made.get("", {}), **made.get(model, {})})

    def _check(self, settings: TraceSettings) -> None:
        """Rejects contradictory settings, unless they switch tracing off."""
        if not settings.levels:
            return
        if settings.rate == 0:
            raise InvalidRequest("Attempting to set invalid trace setting :sample rate must be non-zero")
        if not self._tracer.has_sink:
            how = "start the server with --trace-config triton,file=PATH"
            raise InvalidRequest(f"Attempting to set invalid trace setting :trace file name is not given; {how}")

    def _check_model(self, model: str) -> None:
        if model and not self._is_model_ready(model):
            raise InvalidRequest(f"Request for unknown model : {model[:128]}")


def _read(name: str, values: Sequence[str] | None, mode: str) -> tuple[str, Any]:
    """The field of `TraceSettings` for a setting, and its value; None clears it."""
    if name == "trace_file":
        raise Unsupported(_TRACE_FILE_IS_FIXED)
    if name == "trace_mode":
        if values and list(values) != [mode]:
            raise Unsupported("trace mode can not be updated through network protocol")
        return "mode", None
    if name == "trace_level":
        return "levels", _levels(values) if values else None
    if name not in _NUMBERS:
        raise InvalidRequest(f"unknown trace setting '{name[:128]}', expected one of {', '.join(_TRACE_NAMES)}")
    field, low, high = _NUMBERS[name]
    if not values:
        return field, None
    if len(values) != 1:
        raise InvalidRequest(f"expect only 1 value for '{name}'")
    return field, _number(name, values[0], low, high)


def _levels(values: Sequence[str]) -> tuple[TraceLevel, ...]:
    if _OFF in values:
        if len(values) > 1:
            raise InvalidRequest("Expect only one trace level 'OFF' is specified")
        return ()
    for value in values:
        if value not in _LEVELS:
            raise InvalidRequest(f"unknown trace level '{value[:128]}', expected OFF, or TIMESTAMPS and TENSORS")
    return tuple(level for level in TraceLevel if level in values)


def _number(name: str, text: str, low: int, high: int) -> int:
    shown = text[:64]
    digits = text.removeprefix("-")
    # A number with more digits is out of range, and slow to parse.
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidRequest(f"Unable to parse '{name}', got: {shown}")
    number = int(text) if len(digits) <= 20 else high + 1
    if low < 0 and number < low:
        raise InvalidRequest(f"Unable to parse '{name}'. Expecting value >= {low}, got: {shown}")
    if not low <= number <= high:
        raise InvalidRequest(f"Unable to parse '{name}', value is out of range [ {low}, {high} ], got: {shown}")
    return number
