"""The `poplar` backend: PopEF files on simulated IPUs.

A version folder holds `executable.popef` and, if clients shall know its anchors by other names, `name_map.json`. config.pbtxt
`parameters` are listed in `serving/parameters.py`, the operator's settings in `serving/settings.py`. Importing this costs no device: the
simulated system is made with the first load.
"""

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from stoker.backends.api.backend import Backend, Instance, LoadRequest
from stoker.backends.api.candidate import Candidate, Violation, refuse
from stoker.backends.api.clock import SystemClock
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.figures import Figure
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelFacts
from stoker.backends.ipu.serving.device_pool import DevicePool
from stoker.backends.ipu.serving.facts import PopefFacts, read_facts
from stoker.backends.ipu.serving.figures import pool_metrics
from stoker.backends.ipu.serving.instance import PoplarInstance
from stoker.backends.ipu.serving.loaded_executable import Lease
from stoker.backends.ipu.serving.notices import pool_notices
from stoker.backends.ipu.serving.parameters import PARAMETER_KEYS, parameter_violations, read_parameters
from stoker.backends.ipu.serving.settings import DevicePoolSettings


class PoplarBackend(Backend):
    """Serves `.popef` files."""

    name = "poplar"
    platforms = ("poplar",)
    aliases = ("ipu",)
    default_model_filename = "executable.popef"
    parameter_keys = PARAMETER_KEYS
    instance_kinds = ("KIND_CPU", "KIND_MODEL")

    def __init__(self) -> None:
        self._settings = DevicePoolSettings()
        self._pool: DevicePool | None = None
        self._lock = threading.Lock()

    def configure(self, settings: Mapping[str, str]) -> None:
        self._settings = DevicePoolSettings.read(settings)

    def inspect(self, files: ModelFiles, model_filename: str) -> ModelFacts:
        return read_facts(files, model_filename)

    def check(self, candidate: Candidate) -> Iterator[Violation]:
        wrong = list(parameter_violations(candidate.parameters, self._settings))
        yield from wrong
        if not wrong and isinstance(candidate.facts, PopefFacts):
            yield from candidate.facts.violations(candidate, read_parameters(candidate.parameters, self._settings))

    def load(self, request: LoadRequest) -> Instance:
        facts = read_facts(request.files, request.model_filename)
        refuse(self.check(request.candidate(facts)))
        parameters = read_parameters(request.parameters, self._settings)
        graph = facts.graph(parameters.sub_graph)
        assert graph is not None  # check had no objection
        executable, options = facts.executable, parameters.run
        pool = self._ready_pool()
        lease = Lease(request.model_name, request.version, graph.index)
        loaded = pool.take(
            lease,
            executable,
            _digest(request.files.path(request.model_filename)),
            options,
            lambda: options.runtime_config(
                settings=self._settings,
                calls_in_flight=parameters.pipeline_depth,
                threads=request.cpu_threads,
                is_fused=executable.index_anchor is not None,
            ),
        )
        return PoplarInstance(
            loaded,
            graph,
            request.signature,
            index_anchor=executable.index_anchor,
            pipeline_depth=parameters.pipeline_depth,
            on_close=partial(pool.release, loaded, lease),
        )

    def figures(self) -> Iterable[Figure]:
        return () if self._pool is None else pool_metrics(self._pool)

    def notices(self) -> Iterable[str]:
        return () if self._pool is None else pool_notices(self._pool)

    def _ready_pool(self) -> DevicePool:
        with self._lock:
            if self._pool is None:
                try:
                    self._pool = DevicePool(self._settings.system(), SystemClock())
                except ValueError as error:
                    raise ModelLoadError(f"the simulated IPUs cannot be set up: {error}") from error
            return self._pool


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
