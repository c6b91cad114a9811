"""Flags of the log and of metrics."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from stoker.server.flags.declare import BadValue, FlagError, Switch, boolean, flag, number, one_of, option, path
from stoker.server.observability.access_log import AccessLogSettings
from stoker.server.observability.logs import LogSettings
from stoker.server.observability.settings import MetricsSettings

_LOGGING = "Logging"


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
        one_of("log-format", LogFormat, panel=_LOGGING, text="text (also default, ISO8601), json, or auto: text on a terminal, else JSON."),
    ] = LogFormat.AUTO
    log_file: Annotated[Path | None, path("log-file", panel=_LOGGING, text="Log there instead of to stderr.")] = None
    log_verbose: Annotated[int, number("log-verbose", 0, 9, panel=_LOGGING, text="0 = off; 1 and up: ever more detail.")] = 0
    log_info: Annotated[Switch, flag("log-info", panel=_LOGGING, text="Log information.")] = True
    log_warning: Annotated[Switch, flag("log-warning", panel=_LOGGING, text="Log warnings.")] = True
    log_error: Annotated[Switch, flag("log-error", panel=_LOGGING, text="Log errors.")] = True

    access_log: Annotated[
        int,
        number("access-log", 0, panel=_LOGGING, text="Log one of every N inference requests, and all that fail; 0 = none."),
    ] = 0
    access_log_file: Annotated[
        Path | None, path("access-log-file", panel=_LOGGING, text="Log requests there, as JSON, instead of with the rest.")
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


_NETWORK = "Network"
_SWITCHES = ("counter_latencies", "histogram_latencies", "summary_latencies")
_QUANTILES = "summary_quantiles"
_MOST_QUANTILES = 32


@dataclass(frozen=True, kw_only=True)
class MetricsFlags:
    """What /metrics shows."""

    metrics_config: Annotated[
        list[str] | None,
        option("metrics-config", metavar="NAME=V", panel=_NETWORK, text="Triton's optional metrics: summary_latencies=true and others."),
    ] = None

    def settings(self) -> dict[str, Any]:
        """Fields of `ServerConfig`.

        Raises:
            FlagError: a piece has another form.
        """
        return {"metrics": metrics_config(self.metrics_config or [])}


def metrics_config(pieces: Sequence[str]) -> MetricsSettings:
    """Joins the pieces, `NAME=VALUE` each.

    Raises:
        FlagError: a piece has another form.
    """
    found: dict[str, Any] = {}
    for piece in pieces:
        name, _, value = piece.partition("=")
        if name in _SWITCHES:
            try:
                found[name] = boolean(value)
            except BadValue as error:
                raise FlagError(f"--metrics-config {piece}: expected {error.expected}") from None
        elif name == _QUANTILES:
            found[name] = _quantiles(piece, value)
        else:
            raise FlagError(f"--metrics-config {piece}: expected NAME=VALUE with one of {', '.join((*_SWITCHES, _QUANTILES))}")
    return MetricsSettings(**found)


def _quantiles(piece: str, text: str) -> tuple[float, ...]:
    """Triton writes each with the error it allows, `0.5:0.05`; here that is the same for all."""
    try:
        ranks = tuple(float(part.partition(":")[0]) for part in text.split(","))
    except ValueError:
        ranks = ()
    if not 0 < len(ranks) <= _MOST_QUANTILES or not all(0 <= rank <= 1 for rank in ranks):
        raise FlagError(f"--metrics-config {piece}: expected up to {_MOST_QUANTILES} numbers from 0 to 1, such as 0.5:0.05,0.99:0.001")
    return ranks
