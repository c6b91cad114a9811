"""The `topsinference` backend: `model.exec` files on simulated GCU cards.

A version folder holds `model.exec`. config.pbtxt `parameters` are listed in `serving/parameters.py`, the operator's settings in
`serving/settings.py`. An instance group of KIND_GPU, which is what KIND_AUTO becomes, gets `count` instances on each card of its `gpus`,
or on every card; with KIND_CPU or KIND_MODEL, `count` instances where there is most room. Importing this costs no card: they are made with
the first load.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack

from stoker.backends.api.backend import Backend, Instance, LoadRequest
from stoker.backends.api.candidate import Candidate, Violation, refuse
from stoker.backends.api.figures import Figure
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelFacts
from stoker.backends.gcu.runtime import StatusError
from stoker.backends.gcu.serving.device_pool import DevicePool, load_failure
from stoker.backends.gcu.serving.facts import ExecFacts, facts_of, load_executable, read_facts
from stoker.backends.gcu.serving.figures import pool_metrics
from stoker.backends.gcu.serving.instance import GcuInstance
from stoker.backends.gcu.serving.loaded_executable import LoadedExecutable
from stoker.backends.gcu.serving.notices import pool_notices
from stoker.backends.gcu.serving.parameters import PARAMETER_KEYS, parameter_violations, read_parameters
from stoker.backends.gcu.serving.placement import Lease
from stoker.backends.gcu.serving.sample_layout import SampleLayout
from stoker.backends.gcu.serving.settings import CardSettings


class TopsInferenceBackend(Backend):
    """Serves `.exec` files."""

    name = "topsinference"
    platforms = ("topsinference",)
    aliases = ("gcu",)
    default_model_filename = "model.exec"
    parameter_keys = PARAMETER_KEYS
    instance_kinds = ("KIND_GPU", "KIND_CPU", "KIND_MODEL")

    def __init__(self) -> None:
        self._settings = CardSettings()
        self._pool: DevicePool | None = None
        self._lock = threading.Lock()

    def configure(self, settings: Mapping[str, str]) -> None:
        self._settings = CardSettings.read(settings)

    def device_ids(self) -> tuple[int, ...]:
        lost = frozenset() if self._pool is None else self._pool.failed_cards
        return tuple(number for number in range(self._settings.cards) if number not in lost)

    def inspect(self, files: ModelFiles, model_filename: str) -> ModelFacts:
        return read_facts(files, model_filename)

    def check(self, candidate: Candidate) -> Iterator[Violation]:
        wrong = list(parameter_violations(candidate.parameters, self._settings))
        yield from wrong
        if not wrong and isinstance(candidate.facts, ExecFacts):
            depth = read_parameters(candidate.parameters).pipeline_depth
            yield from candidate.facts.violations(candidate, self._settings.hardware, depth)

    def load(self, request: LoadRequest) -> Instance:
        pool = self._ready_pool()
        path = request.files.path(request.model_filename)
        with ExitStack() as taken:
            executable = pool.shared_executable(path, lambda: load_executable(request.files, request.model_filename))
            taken.callback(pool.forget_executable, path)
            refuse(self.check(request.candidate(facts_of(executable, executable.weight_bytes))))
            parameters = read_parameters(request.parameters)
            lease = Lease(request.model_name, request.version)
            place = pool.place(lease, card=request.device_id, siblings=request.siblings, wanted=parameters.clusters)
            taken.callback(pool.allocator.release, place)
            layout = SampleLayout(request.signature, executable.inputs, executable.outputs)
            try:
                loaded = LoadedExecutable(pool, place, executable, layout, parameters)
            except StatusError as error:
                raise load_failure(error, place) from error
            return GcuInstance(loaded, request.signature, on_close=taken.pop_all().close)

    def figures(self) -> Iterable[Figure]:
        return () if self._pool is None else pool_metrics(self._pool)

    def notices(self) -> Iterable[str]:
        return () if self._pool is None else pool_notices(self._pool)

    def _ready_pool(self) -> DevicePool:
        with self._lock:
            if self._pool is None:
                self._pool = DevicePool(self._settings)
            return self._pool
