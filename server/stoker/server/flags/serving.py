"""Flags of serving itself: bounds, threads, backends."""

from dataclasses import dataclass
from typing import Annotated, Any

from stoker.server.core.busy_poll import DEFAULT_US
from stoker.server.core.limits import Limits
from stoker.server.flags.declare import number, option, time
from stoker.server.flags.rules import backend_settings, limits
from stoker.server.flags.values import FlagError
from stoker.server.observability.loop_settings import LEAST_S, LoopWatchSettings

_PANEL = "Serving"


@dataclass(frozen=True, kw_only=True)
class ServingFlags:
    """The panel "Serving"."""

    server_id: Annotated[str, option("id", panel=_PANEL, text="The server's name towards clients.")] = "stoker"
    shutdown_delay_secs: Annotated[
        float,
        time("shutdown-delay-secs", 0, 3600, panel=_PANEL, text="After SIGTERM, serve on this long while not ready, then drain."),
    ] = 0.0
    exit_timeout_secs: Annotated[
        float, time("exit-timeout-secs", 0, 86400, panel=_PANEL, text="How long in-flight work may take after SIGTERM.")
    ] = 30.0
    loop_block_secs: Annotated[
        float,
        time("loop-block-secs", 0, 3600, panel=_PANEL, text="Log all stacks when the event loop does not run for so long; 0: do not."),
    ] = 1.0
    loop_abort_secs: Annotated[
        float,
        time("loop-abort-secs", 0, 86400, panel=_PANEL, text="Abort the process when the event loop does not run for so long; 0: never."),
    ] = 0.0
    max_queue_size: Annotated[
        int, number("max-queue-size", 1, 10_000_000, panel=_PANEL, text="Requests that may wait for one model version.")
    ] = 1024
    cpu_threads: Annotated[
        int | None, number("cpu-threads", 1, 4096, panel=_PANEL, text="CPU cores shared out among instances (default: the usable ones).")
    ] = None
    busy_poll_us: Annotated[
        int,
        number(
            "busy-poll-us",
            0,
            10_000,
            panel=_PANEL,
            text="How long the event loop looks out for the next request of a client that sends one at a time, in microseconds; 0: not.",
        ),
    ] = DEFAULT_US
    http_max_input_size: Annotated[
        int | None,
        number(
            "http-max-input-size",
            1,
            panel=_PANEL,
            text=f"Largest HTTP body in bytes, also once decompressed (default: {Limits().http_body_bytes}).",
        ),
    ] = None
    limit: Annotated[
        list[str] | None,
        option("limit", metavar="NAME=N", panel=_PANEL, text="Set any other bound of the fronts, such as json_depth=64."),
    ] = None
    backend_config: Annotated[
        list[str] | None,
        option("backend-config", metavar="BACKEND,NAME=VALUE", panel=_PANEL, text="A setting of a backend; may be repeated."),
    ] = None

    def settings(self) -> dict[str, Any]:
        """Fields of `ServerConfig`.

        Raises:
            FlagError: an unknown bound, a time that is too short, or a setting that is malformed or given twice.
        """
        for name, value in (("loop-block-secs", self.loop_block_secs), ("loop-abort-secs", self.loop_abort_secs)):
            if 0 < value < LEAST_S:
                raise FlagError(f"--{name}={value:g}: expected 0, or seconds from {LEAST_S:g} up")
        return {
            "server_id": self.server_id,
            "shutdown_delay_s": self.shutdown_delay_secs,
            "exit_timeout_s": self.exit_timeout_secs,
            "loop_watch": LoopWatchSettings(block_s=self.loop_block_secs, abort_s=self.loop_abort_secs),
            "max_queue_size": self.max_queue_size,
            "cpu_threads": self.cpu_threads,
            "busy_poll_us": self.busy_poll_us,
            "limits": limits(self.limit or [], self.http_max_input_size),
            "backend_settings": backend_settings(self.backend_config or []),
        }
