"""The log settings that clients may read and change: Triton's names and texts for those of `stoker.server.observability.logs`.

Where the log goes is the operator's: `log_file` is shown and never changed, for a client that names a file writes to it.
"""

import logging
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from stoker.backends.api.errors import InvalidRequest, Unsupported
from stoker.server.observability.logs import LogSettings

FILE_IS_FIXED = "log file location can not be updated through network protocol"
#: By name on the wire, the form of a line. Triton's two differ in how they print the time; ours is ISO 8601 whatever they are called.
FORMATS: dict[str, Literal["text", "json"]] = {"default": "text", "ISO8601": "text", "text": "text", "json": "json"}
_SWITCHES = {"log_info": "info", "log_warning": "warning", "log_error": "error"}
_NAMES = ("log_file", *_SWITCHES, "log_verbose_level", "log_format")
_UINT32_MAX = (1 << 32) - 1
_log = logging.getLogger("stoker.protocols")


class ChangeableLogs(Protocol):
    """The process's logs."""

    is_json: bool

    @property
    def settings(self) -> LogSettings:
        """What holds now."""

    def change(self, settings: LogSettings) -> None:
        """Switches to `settings`, but for the file."""


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
        """Changes what `given` names, all of it or nothing; a value None leaves its setting as it is.

        Raises:
            Unsupported: the log file is among them. InvalidRequest: an unknown setting, or a value of a wrong type.
        """
        changes: dict[str, Any] = {}
        form = self._format
        for name, value in given.items():
            if name not in _NAMES:
                raise InvalidRequest(f"unknown log setting '{name[:128]}', expected one of {', '.join(_NAMES)}")
            if value is None:
                continue
            if name == "log_file":
                raise Unsupported(FILE_IS_FIXED)
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
        # Told before it holds, so that a client cannot switch lines off unseen.
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
