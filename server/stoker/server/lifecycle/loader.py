"""`VersionLoader`: from a version folder to a `Servable`: snapshot, configure, inspect, load every instance, warm up.

Blocking steps run in threads. A step that fails closes the instances, removes the snapshot, and raises a ServingError with the reason and
the position.
"""

import asyncio
import hashlib
import itertools
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from stoker.backends.api.backend import Backend, Instance, LoadRequest
from stoker.backends.api.batch import processor_for
from stoker.backends.api.calls import ModelCalls
from stoker.backends.api.clock import Clock
from stoker.backends.api.cpu import threads_for_instance, usable_cores
from stoker.backends.api.errors import ModelLoadError, ServingError, Unavailable
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelFacts
from stoker.backends.api.registry import BackendRegistry
from stoker.backends.worker.process import StartControl
from stoker.server.caching.response_key import IDENTITY_BYTES
from stoker.server.caching.response_store import ResponseStore
from stoker.server.config.checks import check_is_whole
from stoker.server.config.complete import Completion, choose_backend, complete
from stoker.server.config.ensemble_completion import complete_ensemble
from stoker.server.config.model_json import wire_to_model_json
from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.report import ConfigError, Finding, FindingKind
from stoker.server.core.ensemble import Ensemble, StepModel
from stoker.server.core.model_config import Execution, ModelConfig
from stoker.server.core.model_key import repository_of
from stoker.server.core.sequence import SequenceBatching
from stoker.server.core.tasks import in_daemon_thread, raise_niceness
from stoker.server.core.timers import Timers
from stoker.server.execution.process_figures import ProcessFigures
from stoker.server.execution.process_supervision import ProcessSettings
from stoker.server.execution.process_worker import CallHandler, ProcessWorker
from stoker.server.execution.worker import AutoWorker, InlineWorker, InstanceWorker, StreamWorker, ThreadWorker, may_run_on_loop
from stoker.server.lifecycle.checksums import verify_checksums
from stoker.server.lifecycle.labels import read_labels
from stoker.server.lifecycle.model_code import check_may_run, completed_by_model
from stoker.server.lifecycle.processes import ProcessInstance, instance_start
from stoker.server.lifecycle.raw_tensors import with_initial_states
from stoker.server.lifecycle.servable import Servable
from stoker.server.lifecycle.settings import LoaderSettings, shown
from stoker.server.lifecycle.snapshot import discard, take_snapshot
from stoker.server.lifecycle.warmup import read_samples, run_samples
from stoker.server.observability.recorder import ServerRecorder, VersionRecorder
from stoker.server.scheduling.cached import CachedScheduler
from stoker.server.scheduling.ensemble import EnsembleScheduler, StepIdentity
from stoker.server.scheduling.ensemble_plan import Resolve
from stoker.server.scheduling.iterative import IterativeScheduler
from stoker.server.scheduling.padding import PaddingScheduler
from stoker.server.scheduling.rate_limiter import RateLimiter, SchedulerLimits
from stoker.server.scheduling.scheduler import Scheduler
from stoker.server.scheduling.sequences import SequenceScheduler
from stoker.server.scheduling.splitting import SplittingScheduler
from stoker.server.scheduling.wrapped import ModelScheduler

log = logging.getLogger("stoker.lifecycle")


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSource:
    """The source of a version to load.

    Attributes:
        name: The model's name.
        version: The version number.
        model_dir: The model's folder in the repository.
        version_dir: The version's folder.
        parsed: The model's configuration as written (or overridden by the load).
        links_root: The folder below which link targets in the model may lie; None: links are rejected.
        files: Files that replace those of the version folder, by path relative to it.
        selected: The files of the version folder that form the version, by their name in the version; None: all of them.
        steps: Of an ensemble, the versions that its steps run, in their order.
        key: The model's key, where it is not its name; see `core/model_key.py`.
    """

    name: str
    version: int
    model_dir: Path
    version_dir: Path
    parsed: ParsedConfig
    files: Mapping[str, bytes] = field(default_factory=dict)
    links_root: Path | None = None
    selected: Mapping[str, str] | None = None
    steps: tuple[StepModel, ...] = ()
    key: str = ""


class BackendRaised(ModelLoadError):
    """A backend raised an exception that the plug-in API does not allow; it is the `__cause__`."""


class Loader(Protocol):
    """Loads versions; the manager uses no other interface of it."""

    async def load(self, source: VersionSource) -> Servable:
        """A servable ready for requests.

        Raises:
            ServingError: it cannot be loaded; nothing is left behind.
        """


class VersionLoader:
    """The loader of the server. Confined to: the event loop; blocking steps run in the loop's default executor."""

    def __init__(
        self,
        registry: BackendRegistry,
        *,
        clock: Clock,
        timers: Timers,
        recorder: ServerRecorder,
        area: Path,
        settings: LoaderSettings,
        is_tuned: bool = True,
        responses: ResponseStore | None = None,
        limiter: RateLimiter | None = None,
    ) -> None:
        """Makes a loader for the backends of `registry`.

        Args:
            registry: The backends.
            clock: Measures loads and batches.
            timers: The timers of the schedulers.
            recorder: Counts requests and batches.
            area: The folder for private copies of version folders.
            settings: How versions are loaded.
            is_tuned: Whether `execution: auto` may run quick batches on the event loop.
            responses: The response cache; None: the server has none.
            limiter: The rate limiter; None: it is off.
        """
        self._limiter = limiter
        self._responses = responses
        self._registry = registry
        self._clock = clock
        self._timers = timers
        self._recorder = recorder
        self._area = area
        self._settings = settings
        self._usable_cores = settings.cpu_threads or usable_cores()
        self._is_tuned = is_tuned
        #: Runs the calls of models in worker processes, and in threads, to other models; None: a trial load without an engine.
        self.calls: CallHandler | None = None
        self.process_figures = ProcessFigures()
        self.thread_calls: ModelCalls | None = None
        #: Finds the versions that the steps of ensembles run on. Set by the owner of loader and manager.
        self.resolve_step: Resolve = _no_steps

    async def load(self, source: VersionSource) -> Servable:
        if source.parsed.ensemble is not None:
            return await self._load_ensemble(source, source.parsed.ensemble)
        control = StartControl()
        loading = in_daemon_thread(f"load-{source.name}.{source.version}", lambda: self._load(source, control))
        try:
            loaded = await asyncio.shield(loading)
        except asyncio.CancelledError:
            # A thread cannot be interrupted, other than a worker process: wait for it, then release what it loaded.
            control.cancel()
            await asyncio.wait([loading])
            if loading.exception() is None:
                await in_daemon_thread("discard", loading.result().discard)
            raise
        try:
            limits = self._limits(source, loaded)
        except ModelLoadError:
            await in_daemon_thread("discard", loaded.discard)
            raise
        return self._assemble(source, loaded, limits)

    def _limits(self, source: VersionSource, loaded: "_Loaded") -> SchedulerLimits | None:
        """Registers the instances with the rate limiter.

        Raises:
            ModelLoadError: they could never run with the resources of the server.
        """
        assert loaded.config is not None
        groups = [group for group in loaded.config.instance_groups if not group.is_passive]
        if self._limiter is not None:
            return SchedulerLimits(self._limiter, self._limiter.register(groups, source.name))
        if any(group.resources or group.limiter_priority > 1 for group in groups):
            log.warning(
                "rate_limiter has no effect: the rate limiter is off (--rate-limit=execution_count)",
                extra={"model": source.name, "version": source.version},
            )
        return None

    async def _load_ensemble(self, source: VersionSource, ensemble: Ensemble) -> Servable:
        """Checks an ensemble against the models of its steps. It has no instances, and no files but labels."""

        def configure() -> tuple[Completion, Mapping[str, Sequence[str]]]:
            if not self._settings.complete_configs:
                check_is_whole(source.parsed)
            verify_checksums(source.parsed, source.version, ModelFiles(source.version_dir, {}), source.model_dir, source.links_root)
            completion = complete_ensemble(source.parsed, source.steps)
            _log_warnings(source, (finding.text for finding in completion.findings if finding.kind is FindingKind.WARNING))
            return completion, read_labels(source.model_dir, completion.config, source.links_root)

        completion, labels = await in_daemon_thread(f"load-{source.name}.{source.version}", configure)
        config = completion.config
        recorder = self._recorder.version(source.key or source.name, source.version, config.metric_tags)
        scheduler = EnsembleScheduler(
            config.name,
            source.version,
            config.signature,
            ensemble,
            [model.signature for model in source.steps],
            self.resolve_step,
            clock=self._clock,
            timers=self._timers,
            recorder=recorder,
            max_queue_size=self._settings.max_queue_size,
        )
        identity = StepIdentity(scheduler.step_servables, lambda: os.urandom(IDENTITY_BYTES))
        in_front = self._cached(config, source.version, scheduler, recorder, identity)
        servable = Servable(config, source.version, in_front, ModelFiles(source.version_dir, {}), labels, _keep)
        servable.findings = completion.findings
        servable.key = source.key or source.name
        return servable

    def _load(self, source: VersionSource, control: StartControl) -> "_Loaded":
        """All blocking steps, in one thread."""
        files = take_snapshot(
            source.version_dir, self._area, overrides=source.files, links_root=source.links_root, selected=source.selected
        )
        loaded = _Loaded(files)
        try:
            verify_checksums(source.parsed, source.version, files, source.model_dir, source.links_root)
            completion, facts = self._configure(source, loaded.files)
            loaded.config = with_initial_states(completion.config, source.model_dir, source.links_root)
            loaded.findings = completion.findings
            in_file = {tensor.name: tensor.labels for tensor in facts.outputs or () if tensor.labels}
            loaded.labels = in_file | read_labels(source.model_dir, loaded.config, source.links_root)
            backend = self._registry.get(loaded.config.backend)
            inner = loaded.config.inner
            if inner.execution is not Execution.PROCESS:
                # Threads that a backend starts while it loads inherit the nice value of this thread. A worker process raises its own.
                raise_niceness(inner.nice)
            samples = list(read_samples(inner, source.model_dir, source.links_root))
            for request in self._requests(inner, source, loaded.files, backend):
                if inner.execution is Execution.PROCESS:
                    start = instance_start(backend, self._registry.settings(backend.name), request, inner, samples, self._clock)
                    loaded.instances.append(ProcessInstance(start, control))
                else:
                    loaded.instances.append(_load_instance(backend, request))
            warmup_ns = 0
            for instance in loaded.instances:
                if isinstance(instance, ProcessInstance):
                    warmup_ns += instance.process.warmup_ns  # it has run the samples when it started
                else:
                    since_ns = self._clock.now_ns()
                    run_samples(inner, samples, processor_for(instance, inner.signature, self._clock).process)
                    warmup_ns += self._clock.now_ns() - since_ns
            loaded.warmup_ns = warmup_ns if inner.warmups else None
            if self._responses is not None and inner.response_cache:
                loaded.identity = _identity(inner, source.version, loaded.files, is_shared=self._responses.is_shared)
        except BaseException:
            loaded.discard()
            raise
        return loaded

    def _configure(self, source: VersionSource, files: ModelFiles) -> tuple[Completion, ModelFacts]:
        if not self._settings.complete_configs:
            check_is_whole(source.parsed)
        backend, model_filename = choose_backend(source.parsed, files.sizes_bytes.keys(), self._registry)
        check_may_run(backend, source.parsed, source.files, self._settings.python_models)
        facts = backend.inspect(files, model_filename)
        try:
            parsed = source.parsed
            if self._settings.complete_configs:
                parsed = completed_by_model(parsed, backend, files, model_filename, source.version, source.model_dir)
            completion = complete(parsed, facts, backend, model_filename)
        except ConfigError as error:
            _log_warnings(source, (str(warning) for warning in error.warnings))
            raise
        _log_warnings(source, (finding.text for finding in completion.findings if finding.kind is FindingKind.WARNING))
        return completion, facts

    def _requests(self, config: ModelConfig, source: VersionSource, files: ModelFiles, backend: Backend) -> list[LoadRequest]:
        slots = [(group, device) for group in config.instance_groups for device in group.gpus or (None,) for _ in range(group.count)]
        siblings = Counter(device for _, device in slots)
        threads = threads_for_instance(self._usable_cores, len(slots))
        numbers = defaultdict[str, Iterator[int]](itertools.count)
        return [
            LoadRequest(
                model_name=config.name,
                version=source.version,
                files=files,
                model_filename=config.model_filename,
                signature=config.signature,
                parameters=config.parameters,
                graph_level=config.graph_level,
                gpu_accelerators=config.gpu_accelerators if group.kind == "KIND_GPU" else (),
                cpu_accelerators=config.cpu_accelerators,
                instance_name=f"{group.name}_{next(numbers[group.name])}",
                cpu_threads=threads,
                device_id=device,
                siblings=siblings[device],
                kind=group.kind,
                model_dir=source.model_dir,
                config_json=wire_to_model_json(config.wire) if backend.reads_config else "",
                calls=self.thread_calls,
            )
            for group, device in slots
        ]

    def _may_adapt(self, config: ModelConfig) -> bool:
        """Whether the inline-execution policy decides where batches of a model with `config` run."""
        return self._is_tuned and config.execution is Execution.AUTO and not (config.signature.is_decoupled or config.nice)

    def _assemble(self, source: VersionSource, loaded: "_Loaded", limits: SchedulerLimits | None) -> Servable:
        assert loaded.config is not None
        config, version, key = loaded.config.inner, source.version, source.key or source.name
        loop = asyncio.get_running_loop()
        recorder = self._recorder.version(key, version, config.metric_tags)
        workers: list[InstanceWorker] = []
        processes: list[ProcessWorker] = []
        passive = [instance for instance, is_passive in zip(loaded.instances, _passive(config), strict=True) if is_passive]
        for index, instance in enumerate(loaded.instances):
            if instance in passive:
                continue
            name = f"{config.name}.{version}.{index}"
            if isinstance(instance, ProcessInstance):
                supervised = self._process_worker(config, source, instance, recorder, loop)
                processes.append(supervised)
                workers.append(supervised)
            elif config.execution is Execution.INLINE and not config.signature.is_decoupled:
                workers.append(InlineWorker(instance, config.signature, self._clock))
            elif self._may_adapt(config) and may_run_on_loop(instance):
                workers.append(AutoWorker(name, instance, config.signature, self._clock, loop))
            else:
                kind = StreamWorker if config.signature.is_decoupled else ThreadWorker
                workers.append(kind(name, instance, config.signature, self._clock, loop, nice=config.nice))

        def discard_all(files: ModelFiles) -> None:
            _close(passive)
            discard(files)

        recorder.first_response_buckets(config.first_response_bounds_ns)
        if loaded.warmup_ns is not None:
            self._recorder.warmed(key, version, duration_ns=loaded.warmup_ns)
        scheduler = Scheduler(
            config,
            version,
            workers,
            clock=self._clock,
            timers=self._timers,
            recorder=recorder,
            max_queue_size=self._settings.max_queue_size,
            limits=limits,
        )
        sequences: SequenceScheduler | None = None
        if config.sequences is None:
            splitting: ModelScheduler = scheduler
            if config.signature.most_split_rows:
                splitting = SplittingScheduler(
                    scheduler,
                    config.name,
                    version,
                    config.signature.max_batch_size,
                    clock=self._clock,
                    recorder=recorder,
                    max_queue_size=self._settings.max_queue_size,
                )
            if config.padding is not None:
                splitting = PaddingScheduler(splitting, config.padding, loaded.config.signature, config.signature, recorder)
            in_front = self._cached(config, version, splitting, recorder, loaded.identity)
            servable = Servable(loaded.config, version, in_front, loaded.files, loaded.labels, discard_all)
        else:
            sequences = self._sequences(scheduler, loaded.config, config, config.sequences, recorder, loop)
            servable = Servable(loaded.config, version, sequences, loaded.files, loaded.labels, discard_all)

        servable.findings = loaded.findings

        def changed() -> None:
            scheduler.wake()
            servable.on_outage()

        def died() -> None:
            recorder.worker_died()
            if sequences is not None:
                sequences.lose_sequences()

        for process in processes:
            process.supervision.on_change, process.supervision.on_death = changed, died
        if len(processes) == len(workers):
            servable.processes = processes
        servable.key = key
        return servable

    def _sequences(
        self,
        inner: Scheduler,
        outer_config: ModelConfig,
        config: ModelConfig,
        batching: SequenceBatching,
        recorder: VersionRecorder,
        loop: asyncio.AbstractEventLoop,
    ) -> SequenceScheduler:
        """The scheduler of sequences in front of `inner`, whose configuration is `config`; that of the clients is `outer_config`."""
        most, name, signature = self._settings.max_queue_size, config.name, outer_config.signature
        clock, timers = self._clock, self._timers
        if not batching.is_iterative:
            return SequenceScheduler(inner, name, signature, batching, clock=clock, timers=timers, recorder=recorder, max_queue_size=most)
        most = min(most, config.max_enqueued_requests or most)
        return IterativeScheduler(
            inner, name, signature, batching, clock=clock, timers=timers, recorder=recorder, max_queue_size=most,
            post=loop.call_soon_threadsafe,
        )  # fmt: skip

    def _process_worker(
        self,
        config: ModelConfig,
        source: VersionSource,
        instance: ProcessInstance,
        recorder: VersionRecorder,
        loop: asyncio.AbstractEventLoop,
    ) -> ProcessWorker:
        settings = ProcessSettings(
            name=instance.start.load.request.instance_name,
            model=config.name,
            version=source.version,
            namespace=str(source.model_dir.parent) if repository_of(source.key) is not None else "",
            instance_timeout_s=config.instance_timeout_s,
        )
        worker = ProcessWorker(
            instance.process,
            instance.start,
            config.signature,
            settings,
            clock=self._clock,
            timers=self._timers,
            loop=loop,
            calls=self.calls,
        )
        self.process_figures.add(worker)
        return worker

    def _cached(
        self,
        config: ModelConfig,
        version: int,
        scheduler: ModelScheduler,
        recorder: VersionRecorder,
        identity: bytes | Callable[[], bytes],
    ) -> ModelScheduler:
        """The scheduler behind the response cache, if the server and the model have one."""
        recorder.uses_cache(config.response_cache and self._responses is not None)
        if not config.response_cache:
            return scheduler
        if self._responses is None:
            log.warning(
                "response_cache has no effect: the server has no cache (--cache-config local,size=BYTES)",
                extra={"model": config.name, "version": version},
            )
            return scheduler
        return CachedScheduler(
            scheduler,
            self._responses,
            identity,
            model=config.name,
            version=version,
            clock=self._clock,
            timers=self._timers,
            recorder=recorder,
            max_queue_size=self._settings.max_queue_size,
        )


@dataclass(slots=True)
class _Loaded:
    """The results of the steps done so far."""

    files: ModelFiles
    config: ModelConfig | None = None
    findings: Sequence[Finding] = ()
    instances: list[Instance | ProcessInstance] = field(default_factory=list)
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    warmup_ns: int | None = None
    identity: bytes = b""

    def discard(self) -> None:
        """Closes the instances and removes the snapshot."""
        _close(self.instances)
        discard(self.files)


def _close(instances: Iterable[Instance | ProcessInstance]) -> None:
    for instance in instances:
        try:
            instance.close()
        except Exception:  # a plug-in may raise anything; the other instances still have to be closed
            log.exception("closing an instance raised")


def _passive(config: ModelConfig) -> list[bool]:
    """For each instance, in the order of their loads, whether it gets no requests."""
    return [group.is_passive for group in config.instance_groups for _ in group.gpus or (None,) for _ in range(group.count)]


def _identity(config: ModelConfig, version: int, files: ModelFiles, *, is_shared: bool) -> bytes:
    """The beginning of the keys of a version's responses; another load never has the same, except of the same model by a shared store."""
    if not is_shared:
        return os.urandom(IDENTITY_BYTES)
    # Other servers, and this one after a restart, use the responses of the same files and configuration.
    found = hashlib.blake2b(repr((config.name, version)).encode(), digest_size=IDENTITY_BYTES)
    found.update(config.wire)
    for name in sorted(files.sizes_bytes):
        found.update(repr((name, files.sizes_bytes[name])).encode("utf-8", "surrogateescape"))
        with files.path(name).open("rb") as file:
            found.update(hashlib.file_digest(file, "blake2b").digest())
    return found.digest()


def _keep(files: ModelFiles) -> None:
    """Discards the files of an ensemble, which has no copy of any."""


def _no_steps(name: str, version: int | None) -> Any:
    raise Unavailable(f"model {shown(name)} cannot be run as a step here")


def _log_warnings(source: VersionSource, warnings: Iterable[str]) -> None:
    """Logs the warnings. Each text begins with its position: `digits/config.pbtxt:3: parameters["x"]: ...`."""
    for warning in warnings:
        log.warning("%s", warning, extra={"model": source.name, "version": source.version})


def _load_instance(backend: Backend, request: LoadRequest) -> Instance:
    try:
        return backend.load(request)
    except ServingError:
        raise
    except Exception as error:  # a plug-in may raise anything; one faulty model must not affect the server
        raise BackendRaised(f"backend '{backend.name}' failed to load {request.instance_name}: {type(error).__name__}: {error}") from error
