"""The composition root: builds the server from its parts, runs it, and shuts it down. The only module that imports every part.

Start: check the repository, bind the ports (so that health requests get a response while models load), load, print the table, say ready.
Stop: ready turns false, the fronts take no new work (after the shutdown delay), what is in flight finishes within the exit timeout, models
unload.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Coroutine, Mapping
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import uvloop

from stoker.backends.api.clock import SystemClock
from stoker.backends.api.errors import BackendSettingError, ServingError
from stoker.backends.api.registry import BackendRegistry
from stoker.server.caching.open_store import open_cache
from stoker.server.caching.response_store import LocalStore, ResponseStore
from stoker.server.core.build_kind import BUILD
from stoker.server.core.tasks import any_left
from stoker.server.core.timers import LoopTimers
from stoker.server.endpoints import Endpoint, ReadyFile, ready_facts
from stoker.server.engine.serving_engine import ServingEngine
from stoker.server.frontend_set import Frontends, console_url, has_console
from stoker.server.lifecycle.listing import ModelSource
from stoker.server.lifecycle.loader import VersionLoader
from stoker.server.lifecycle.manager import ModelManager
from stoker.server.lifecycle.model_code import code_notices
from stoker.server.lifecycle.repository import RepositoryUnreadable
from stoker.server.lifecycle.snapshot import snapshot_area
from stoker.server.model_calls import LoopCalls, ModelRequests, ThreadCalls
from stoker.server.net.receive_buffers import forget_large_blocks
from stoker.server.observability import logs
from stoker.server.observability.access_log import AccessLog
from stoker.server.observability.banner import address_line, print_startup, without_ready_version
from stoker.server.observability.families import BackendFamilies
from stoker.server.observability.logs import Logs
from stoker.server.observability.loop_watch import LoopWatch
from stoker.server.observability.metrics import Metrics
from stoker.server.observability.series import CacheFigures
from stoker.server.observability.span_export import SpanExport
from stoker.server.observability.tracer import Tracer
from stoker.server.protocols.settings import TraceStart
from stoker.server.scheduling.rate_limiter import RateLimiter
from stoker.server.server_config import ServerConfig
from stoker.server.serving_start import model_locations
from stoker.server.shutdown import Shutdown, delay, take_down
from stoker.server.tuning.busy_poll import BusyPoll
from stoker.server.tuning.garbage_collection import collecting_seldom
from stoker.server.tuning.heap_trim import trim_all, trim_when_idle
from stoker.server.tuning.read_batching import Reads

log = logging.getLogger("stoker.server")


class StartError(Exception):
    """The server cannot start; the message is one line for the operator."""


def run(config: ServerConfig) -> int:
    """Serves until a signal requests the shutdown; returns the exit code.

    Raises:
        StartError: a port is taken, or a repository or folder cannot be used.
    """
    # Before there is anything to clean up: from here on a signal ends the server through the cleanup of everything that is open.
    shutdown = Shutdown()
    try:
        with collecting_seldom(), logs.configure(config.logs) as sink, snapshot_area(config.loader.snapshot_dir) as area:
            code = uvloop.run(_serve(config, area, sink, shutdown))
    except (RepositoryUnreadable, BackendSettingError, ServingError) as error:
        raise StartError(str(error)) from error
    except OSError as error:  # PortInUse among them, whose message is complete
        raise StartError(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error
    if any_left() or shutdown.is_late:
        # A backend hangs in a load or a batch, or the exit timeout is over. All parts of the server are closed. Finalizing the interpreter
        # takes up to half a second and may crash while native code runs.
        sys.stdout.flush()
        os._exit(code)
    return code


async def _serve(config: ServerConfig, area: Path, sink: Logs, shutdown: Shutdown) -> int:
    shutdown.bind_loop(asyncio.get_running_loop())
    ready_file = ReadyFile(config.ready_file)
    for notice in config.notices:
        log.info("%s", notice)
    backends = BackendRegistry()
    locations = model_locations(
        config.serving_start,
        config.repositories,
        config.config_name,
        follows_links=config.follows_links,
        has_namespaces=config.has_namespaces,
        paths=config.paths,
        backends=lambda: backends,
    )
    locations.source.check_roots()
    backends.configure(config.backend_settings)
    tracer = _tracer(config.kserve.trace)
    clock = SystemClock()
    access = AccessLog(config.access_log, clock.now_ns, LoopTimers(asyncio.get_running_loop(), clock))
    watch = LoopWatch(config.loop_watch, clock.now_ns)
    responses = open_cache(config.cache, clock.now_ns)
    manager, engine, metrics = _build(config, locations.source, backends, area, sink, tracer, access, watch, responses)
    history = metrics.history() if has_console(config) else None

    def notices() -> list[str]:
        return [notice for backend in backends.in_use() for notice in backend.notices()]

    frontends = Frontends(engine, config, sink, tracer, history, notices)
    stop_requested = asyncio.create_task(shutdown.requested.wait())
    following: list[asyncio.Task[None]] = []
    is_rejected = is_serving = False
    watching = ExitStack()
    try:
        endpoints = await frontends.start()
        watching.enter_context(watch.watching(sink.descriptor, is_json=sink.is_json))
        if history is not None:
            following.append(asyncio.create_task(history.run()))
        await manager.start()
        poll_s = config.serving_start.config_poll_s
        if locations.file is not None and poll_s is not None:
            following.append(asyncio.create_task(locations.file.follow(partial(manager.replace_models, is_trusted=True), poll_s)))
        await _unless(stop_requested, manager.wait_initial())
        if manager.must_exit:
            log.error("a model failed to load and --exit-on-error is set", extra={"models": ", ".join(manager.failed_models())})
            return 1
        is_serving = not stop_requested.done()
        if is_serving:
            sink.flush()  # write the records of the loads before the table
            _announce(engine, endpoints, backends, sink, config)
            await _unless(stop_requested, ready_file.write_once_ready(engine, ready_facts(endpoints)))
        if config.tuning.is_on:

            def trim_memory() -> None:
                forget_large_blocks()
                trim_all(backends.in_use())

            trim = trim_when_idle(
                trim_memory,
                lambda: not (engine.requests_in_flight or engine.bytes_in_flight),
                is_forced=lambda: any(backend.has_memory_to_release() for backend in backends.in_use()),
            )
            following.append(asyncio.create_task(trim))
        await stop_requested
        return 0
    except (OSError, RepositoryUnreadable):
        is_rejected = True
        raise
    finally:
        stop_requested.cancel()
        if is_serving and shutdown.signal_name and config.shutdown_delay_s:
            ready_file.remove()
            await delay(engine, shutdown, config.shutdown_delay_s)
        for task in following:
            task.cancel()
        ready_file.remove()
        if not is_rejected:
            log.info("shutting down", extra={"signal": shutdown.signal_name, "requests_in_flight": engine.requests_in_flight})
        watch.begin_shutdown()
        writers = {"writing traces": tracer.close, "writing the access log": access.close}
        shutdown.is_late = await take_down(engine, frontends, manager, config.exit_timeout_s, writers)
        if responses is not None:
            await responses.close()
        watching.close()
        if not is_rejected:
            log.info("stopped")


def _tracer(start: TraceStart) -> Tracer:
    clock = SystemClock()
    spans = None
    if start.collector is not None:
        spans = SpanExport(start.collector, clock.wall_ms() * 1_000_000 - clock.now_ns())
    return Tracer(start.file, clock.now_ns, start.settings, spans)


def _build(
    config: ServerConfig,
    repository: ModelSource,
    backends: BackendRegistry,
    area: Path,
    sink: Logs,
    tracer: Tracer,
    access: AccessLog,
    watch: LoopWatch,
    responses: ResponseStore | None,
) -> tuple[ModelManager, ServingEngine, Metrics]:
    clock, reads = SystemClock(), Reads()
    metrics = Metrics(clock, settings=config.metrics)
    metrics.registry.register(watch)
    loop = asyncio.get_running_loop()
    loader = VersionLoader(
        backends,
        clock=clock,
        timers=LoopTimers(loop, clock, reads.defer if config.tuning.is_on else None),
        recorder=metrics,
        area=area,
        settings=config.loader,
        is_tuned=config.tuning.is_on,
        responses=responses,
        limiter=RateLimiter(config.rate_limit.resources, LoopTimers(loop, clock).call_soon) if config.rate_limit.is_on else None,
    )
    metrics.registry.register(BackendFamilies(lambda: (*backends.in_use(), loader.process_figures)))
    manager = ModelManager(repository, loader, metrics, clock, config.lifecycle)
    loader.resolve_step = manager.resolve_key
    engine = ServingEngine(
        manager,
        metrics,
        clock,
        name=config.server_id,
        version=version("stoker") + ("" if BUILD == "pure" else f"+{BUILD}"),
        max_bytes_in_flight=config.limits.bytes_in_flight,
        max_request_bytes=config.limits.request_bytes,
        max_waiting_requests=config.limits.admission_waiting,
        stalled_bytes_per_s=config.limits.body_bytes_per_s,
        tracer=tracer,
        access=access,
        reads=reads,
    )
    requests = ModelRequests(engine, config.limits)
    loader.calls, loader.thread_calls = LoopCalls(requests), ThreadCalls(requests, asyncio.get_running_loop())
    metrics.watch(
        namespaces=manager.namespaces,
        requests_in_flight=lambda: engine.requests_in_flight,
        bytes_in_flight=lambda: engine.bytes_in_flight,
        evictions=lambda: engine.budget.evicted,
        log_lines_dropped=lambda: sink.dropped() + access.dropped(),
        is_ready=engine.is_ready,
        cache_figures=lambda: (
            CacheFigures(responses.size_bytes, len(responses), responses.evicted) if isinstance(responses, LocalStore) else None
        ),
    )
    if config.tuning.is_on and config.tuning.busy_poll_us:
        reads.busy_poll = BusyPoll(asyncio.get_running_loop().call_soon, clock.now_ns, engine, config.tuning.busy_poll_us)
    return manager, engine, metrics


async def _unless(stop_requested: "asyncio.Task[Literal[True]]", work: Coroutine[Any, Any, None]) -> None:
    """Does `work`, but cancels it when a shutdown is requested."""
    task = asyncio.create_task(work)
    await asyncio.wait([task, stop_requested], return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()


def _announce(
    engine: ServingEngine,
    endpoints: Mapping[str, Endpoint],
    backends: BackendRegistry,
    sink: Logs,
    config: ServerConfig,
) -> None:
    """Prints the table on standard output for people; a log that goes elsewhere gets the addresses too."""
    console, is_json_requested = console_url(config, endpoints), config.logs.format == "json"
    addresses = {name: str(endpoint) for name, endpoint in endpoints.items()}
    is_terminal, is_one_file = sys.stdout.isatty(), sink.shares_file_with(sys.stdout)
    if not is_one_file:
        log.info("%s", address_line(addresses), extra=addresses | ({"console": console} if console else {}))
    index = engine.index()
    print_startup(
        index,
        addresses,
        stream=sys.stdout,
        is_terminal=is_terminal,
        # A file that holds both must keep one JSON object on each line.
        as_json=is_json_requested or (sink.is_json and is_one_file and not is_terminal),
        notices=[
            *(notice for backend in backends.in_use() for notice in backend.notices()),
            *code_notices(index, backends, config.loader.python_models),
        ],
        console=console,
        not_ready=[] if engine.is_ready() else without_ready_version(index),
    )
