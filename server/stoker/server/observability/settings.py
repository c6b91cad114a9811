"""Settings of logs, metrics and the event loop's monitor, with their flags. Plain data, so that reading a command line imports nothing
else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from stoker.server.core.flag import BadValue, Panel, number, one_of_values, option, path, seconds, switch

LogFormat = Literal["auto", "text", "json"]
#: Formats by the flag's values; `default` and `ISO8601` are Triton's names for the human-readable one.
_LOG_FORMATS: Final[dict[str, LogFormat]] = {"auto": "auto", "text": "text", "json": "json", "default": "text", "ISO8601": "text"}


def _log_format(given: str) -> LogFormat:
    if given not in _LOG_FORMATS:
        raise BadValue(given, one_of_values(_LOG_FORMATS))
    return _LOG_FORMATS[given]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Settings of the log.

    Attributes:
        format: `auto` is text on a terminal and JSON otherwise.
        file: Appended to; None: standard error.
        verbose: 0: no DEBUG lines; 1: DEBUG of the server; 2 and more: of the libraries too.
        info, warning, error: Whether lines of that level are written; `error` includes CRITICAL.
    """

    format: Annotated[
        LogFormat,
        option(
            "log-format",
            metavar="NAME",
            panel=Panel.LOGGING,
            parser=_log_format,
            text="text (also default, ISO8601), json, or auto: text on a terminal, else JSON.",
        ),
    ] = "auto"
    file: Annotated[Path | None, path("log-file", panel=Panel.LOGGING, text="File to log to instead of stderr.")] = None
    verbose: Annotated[
        int,
        number("log-verbose", 0, 9, panel=Panel.LOGGING, text="0 = off; 1 = debug messages of the server; 2 and up = of libraries too."),
    ] = 0
    info: Annotated[bool, switch("log-info", panel=Panel.LOGGING, text="Log information.")] = True
    warning: Annotated[bool, switch("log-warning", panel=Panel.LOGGING, text="Log warnings.")] = True
    error: Annotated[bool, switch("log-error", panel=Panel.LOGGING, text="Log errors.")] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessLogSettings:
    """Settings of the access log.

    Attributes:
        every: One of so many requests is logged, and each that fails; 0: none, including those that fail.
        file: A file to append to, one JSON object for each line; None: lines go to the log.
    """

    every: Annotated[
        int, number("access-log", 0, panel=Panel.LOGGING, text="Log one of every N inference requests and all failed ones; 0 = none.")
    ] = 0
    file: Annotated[
        Path | None, path("access-log-file", panel=Panel.LOGGING, text="File for the access log, as JSON, instead of the ordinary log.")
    ] = None


#: Triton's quantiles; the width of `latency_summaries`' buckets replaces their allowed errors of 0.05 to 0.001.
DEFAULT_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Triton's `--metrics-config`.

    Attributes:
        counter_latencies: Show times as sums (`nv_inference_..._duration_us`).
        histogram_latencies: Show the time to the first response of decoupled models as a histogram.
        summary_latencies: Record times by quantile as well (`nv_inference_..._summary_us`); costs some microseconds for each batch.
        summary_quantiles: The quantiles, each from 0 to 1.
    """

    counter_latencies: bool = True
    histogram_latencies: bool = False
    summary_latencies: bool = False
    summary_quantiles: tuple[float, ...] = DEFAULT_QUANTILES


#: Longest time between two beats, seconds.
LONGEST_BEAT_S: Final = 0.25
#: The shortest time without beats that differs from an ordinary turn of the loop, seconds.
LEAST_S: Final = 0.1


def _silence(high_s: float) -> Callable[[str], float]:
    """Returns a reader of 0, or of a time from `LEAST_S` to `high_s` seconds."""
    read_s = seconds(0, high_s)

    def read(given: str) -> float:
        time_s = read_s(given)
        if 0 < time_s < LEAST_S:
            raise BadValue(f"{time_s:g}", f"0, or seconds from {LEAST_S:g} up")
        return time_s

    return read


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopWatchSettings:
    """The limits of a blocked event loop.

    Attributes:
        block_s: Seconds without a beat after which stacks are written and a block is counted; 0: neither.
        abort_s: Seconds without a beat after which the process is ended by SIGABRT; 0: never.
    """

    block_s: Annotated[
        float,
        option(
            "loop-block-secs",
            metavar="SECONDS",
            panel=Panel.SERVING,
            parser=_silence(3600),
            text="Log all stacks when the event loop is blocked for this time; 0: never.",
        ),
    ] = 1.0
    abort_s: Annotated[
        float,
        option(
            "loop-abort-secs",
            metavar="SECONDS",
            panel=Panel.SERVING,
            parser=_silence(86400),
            text="Abort the process when the event loop is blocked for this time; 0: never.",
        ),
    ] = 0.0

    @property
    def beat_s(self) -> float:
        """Time between two beats, seconds."""
        return min([LONGEST_BEAT_S, *(each / 4 for each in (self.block_s, self.abort_s) if each)])
