"""Flags of the log."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from stoker.server.flags.declare import Switch, flag, number, one_of, path
from stoker.server.observability.access_log import AccessLogSettings
from stoker.server.observability.logs import LogSettings

_PANEL = "Logging"


class LogFormat(StrEnum):
    """Forms of the log; `default` and `ISO8601` are Triton's names for the human-readable one."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"
    DEFAULT = "default"
    ISO8601 = "ISO8601"


_FORMATS: dict[LogFormat, Literal["auto", "text", "json"]] = {
    LogFormat.AUTO: "auto",
    LogFormat.TEXT: "text",
    LogFormat.JSON: "json",
    LogFormat.DEFAULT: "text",
    LogFormat.ISO8601: "text",
}


@dataclass(frozen=True, kw_only=True)
class LogFlags:
    """The panel "Logging"."""

    log_format: Annotated[
        LogFormat,
        one_of("log-format", LogFormat, panel=_PANEL, text="text (also default, ISO8601), json, or auto: text on a terminal, else JSON."),
    ] = LogFormat.AUTO
    log_file: Annotated[Path | None, path("log-file", panel=_PANEL, text="Log there instead of to stderr.")] = None
    log_verbose: Annotated[int, number("log-verbose", 0, 9, panel=_PANEL, text="0 = off; 1 and up: ever more detail.")] = 0
    log_info: Annotated[Switch, flag("log-info", panel=_PANEL, text="Log information.")] = True
    log_warning: Annotated[Switch, flag("log-warning", panel=_PANEL, text="Log warnings.")] = True
    log_error: Annotated[Switch, flag("log-error", panel=_PANEL, text="Log errors.")] = True

    access_log: Annotated[
        int,
        number("access-log", 0, panel=_PANEL, text="Log one of every N inference requests, and all that fail; 0 = none."),
    ] = 0
    access_log_file: Annotated[
        Path | None, path("access-log-file", panel=_PANEL, text="Log requests there, as JSON, instead of with the rest.")
    ] = None

    def settings(self) -> dict[str, Any]:
        """Fields of `ServerConfig`."""
        logs = LogSettings(
            verbose=self.log_verbose,
            info=self.log_info,
            warning=self.log_warning,
            error=self.log_error,
            format=_FORMATS[self.log_format],
            file=self.log_file,
        )
        return {"logs": logs, "access_log": AccessLogSettings(every=self.access_log, file=self.access_log_file)}
