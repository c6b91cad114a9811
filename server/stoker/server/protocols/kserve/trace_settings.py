"""The trace settings that clients may read and change, with Triton's names, forms and texts.

Values are strings. A model has settings of its own where some were made for it; what was not made, or was cleared by null, is that of all
models, and for all models what the operator started the server with. Where traces are written is the operator's alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stoker.backends.api.errors import InvalidRequest, TooLarge, Unsupported
from stoker.server.core.limits import Limits
from stoker.server.observability.tracer import FILE, TraceLevel, Tracer, TraceSettings

FILE_IS_FIXED = "trace file location can not be updated through network protocol"
_OFF = "OFF"
_LEVELS = frozenset(level.value for level in TraceLevel)
#: By name on the wire: the field, the least and the greatest value. What an unsigned or signed 32-bit integer holds.
_NUMBERS = {
    "trace_rate": ("rate", 0, (1 << 32) - 1),
    "trace_count": ("count", -1, (1 << 31) - 1),
    "log_frequency": ("log_frequency", 0, (1 << 32) - 1),
}
_NAMES = ("trace_file", "trace_level", *_NUMBERS, "trace_mode")
_Changes = dict[str, Any]
Given = Mapping[str, Sequence[str] | None]
"""By setting, its values; nothing or None clears it."""


class TraceControl:
    """Reads and changes the trace settings. Confined to: the event loop."""

    def __init__(self, tracer: Tracer, defaults: TraceSettings, limits: Limits, is_model_ready: Callable[[str], bool]) -> None:
        """`defaults` are those that the server was started with."""
        self._tracer = tracer
        self._defaults = defaults
        self._limits = limits
        self._is_model_ready = is_model_ready
        # By model, what was set for it; "" stands for all models.
        self._made: dict[str, _Changes] = {}

    def read(self, model: str) -> dict[str, list[str]]:
        """What holds for `model`, or for all models where it is empty, in Triton's order.

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
        """Changes what `given` names, all of it or nothing.

        Raises:
            Unsupported: the file or the mode is among it. TooLarge: too many models have settings of their own.
            InvalidRequest: no such model is READY, an unknown setting or a value of another form, or settings that cannot work together.
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
        """Settings may be senseless only where they switch tracing off."""
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
    """The field of `TraceSettings` that a setting is, and its value; None clears it."""
    if name == "trace_file":
        raise Unsupported(FILE_IS_FIXED)
    if name == "trace_mode":
        if values and list(values) != [mode]:
            raise Unsupported("trace mode can not be updated through network protocol")
        return "mode", None
    if name == "trace_level":
        return "levels", _levels(values) if values else None
    if name not in _NUMBERS:
        raise InvalidRequest(f"unknown trace setting '{name[:128]}', expected one of {', '.join(_NAMES)}")
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
    # No number of more digits is in any range, and long ones take long to read.
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidRequest(f"Unable to parse '{name}', got: {shown}")
    number = int(text) if len(digits) <= 20 else high + 1
    if low < 0 and number < low:
        raise InvalidRequest(f"Unable to parse '{name}'. Expecting value >= {low}, got: {shown}")
    if not low <= number <= high:
        raise InvalidRequest(f"Unable to parse '{name}', value is out of range [ {low}, {high} ], got: {shown}")
    return number
