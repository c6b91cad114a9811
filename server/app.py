"""The composition root: builds the server from its parts, runs it, and takes it down. The only file that knows every class.

Start: check the repository, bind the ports (so that health answers while models load), load, print the table, say ready.
Stop: ready turns false, the fronts take no new work, what is in flight finishes within the exit timeout, models unload.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import uvloop

from backends.api.clock import SystemClock
from backends.api.cpu import usable_cores
from backends.api.registry import BackendRegistry
from server.core.timers import LoopTimers
from server.engine.serving_engine import ServingEngine
from server.frontends.listen import PortInUse
from server.lifecycle.loader import LoaderSettings, VersionLoader
from server.lifecycle.manager import ModelManager
from server.lifecycle.repository import ModelRepository, RepositoryUnreadable
from server.lifecycle.settings import LifecycleSettings
from server.lifecycle.snapshot_area import snapshot_area
from server.observability import logs
from server.observability.banner import print_startup
from server.observability.metrics import Metrics
from server.server_config import ServerConfig

log = logging.getLogger("stoker.server")

#: How often a start that is not ready yet is looked at again.
READY_CHECK_S = 0.05
#: Answering what is in flight may use the whole exit timeout; closing models gets this much more.
UNLOAD_GRACE_S = 5.0


class StartError(Exception):
    """The server cannot start; the message is one line for the operator."""


def run(config: ServerConfig) -> int:
    """Serves until a signal comes; returns the exit code.

    Raises:
        StartError: a port is taken, or a repository or folder cannot be used.
    """
    try:
        logs.configure(config.logs)
        with snapshot_area(config.snapshot_dir) as area:
            return uvloop.run(_serve(config, area))
    except RepositoryUnreadable as error:
        raise StartError(str(error)) from error
    except PortInUse as error:
        raise StartError(str(error)) from error
    except OSError as error:
        raise StartError(f"{error.filename or 'start'}: {error.strerror or error}") from error


class _Shutdown:
    """Turns the first SIGTERM or SIGINT into an event, and the second into an immediate end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._receive, number)

    def _receive(self, number: signal.Signals) -> None:
        if self.asked.is_set():
            log.warning("second signal: ending at once", extra={"signal": number.name})
            os._exit(1)
        log.info("shutting down", extra={"signal": number.name})
        self.asked.set()


async def _serve(config: ServerConfig, area: Path) -> int:
    loop = asyncio.get_running_loop()
    shutdown = _Shutdown(loop)
    clock = SystemClock()
    metrics = Metrics(clock)
    registry = BackendRegistry()
    loader = VersionLoader(
        registry,
        clock=clock,
        timers=LoopTimers(loop, clock),
        recorder=metrics,
        settings=LoaderSettings(
            snapshot_dir=area, usable_cores=config.cpu_threads or usable_cores(), max_queue_size=config.max_queue_size
        ),
    )
    manager = ModelManager(
        ModelRepository(config.repositories),
        loader,
        metrics,
        clock,
        LifecycleSettings(
            control_mode=config.control_mode,
            load_models=config.load_models,
            poll_interval_s=config.poll_interval_s,
            settle_s=config.settle_s,
            exit_on_error=config.exit_on_error,
            strict_readiness=config.strict_readiness,
            load_concurrency=config.load_concurrency,
            load_retries=config.load_retries,
        ),
    )
    engine = ServingEngine(
        manager, metrics, clock, name=config.server_id, version=version("stoker"), max_bytes_in_flight=config.limits.bytes_in_flight
    )
    metrics.watch(
        requests_in_flight=lambda: engine.requests_in_flight,
        bytes_in_flight=lambda: engine.bytes_in_flight,
        is_ready=engine.is_ready,
    )
    fronts = Fronts(engine, config)
    watching = asyncio.create_task(_until(shutdown.asked))
    ready_file = ReadyFile(config.ready_file)
    try:
        ports = await fronts.start()
        await manager.start()
        await _first(manager.wait_initial(), watching)
        if not shutdown.asked.is_set():
            if config.exit_on_error and manager.failed_models():
                log.error("a model failed to load and --exit-on-error is set", extra={"models": ", ".join(manager.failed_models())})
                return 1
            print_startup(engine.index(), ports.addresses, stream=sys.stderr, is_terminal=sys.stderr.isatty())
            await _first(ready_file.write_once_ready(engine, ports), watching)
        await watching
        return 0
    finally:
        watching.cancel()
        engine.begin_shutdown()
        ready_file.remove()
        await fronts.stop(config.exit_timeout_s)
        await manager.stop(UNLOAD_GRACE_S)
