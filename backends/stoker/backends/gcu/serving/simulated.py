"""`SimulatedCards`: the runtime of simulated GCU cards."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack

from stoker.backends.api.backend import Instance, LoadRequest
from stoker.backends.api.candidate import Candidate, Violation, reject
from stoker.backends.api.clock import Clock
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelFacts
from stoker.backends.devices.pool import Lease
from stoker.backends.devices.runtime import DeviceRuntime, simulated_description
from stoker.backends.gcu.runtime import StatusError
from stoker.backends.gcu.serving.card_executable import CardExecutable
from stoker.backends.gcu.serving.facts import ExecFacts, facts_of, load_executable, read_facts
from stoker.backends.gcu.serving.instance import GcuInstance
from stoker.backends.gcu.serving.options import CardSettings, parameter_violations, read_parameters
from stoker.backends.gcu.serving.pool import GcuPool, load_failure
from stoker.backends.gcu.serving.sample_layout import SampleLayout


class SimulatedCards(DeviceRuntime[GcuPool]):
    """Runs Stoker's `model.exec` files.

    Attributes:
        settings: The operator's settings.
    """

    is_simulated = True

    def __init__(self, settings: CardSettings) -> None:
        super().__init__()
        self.settings = settings

    @property
    def description(self) -> str:
        return simulated_description()

    @property
    def clock(self) -> Clock:
        return self.ready_pool().system.clock

    def make_pool(self) -> GcuPool:
        return GcuPool(self.settings)

    def device_ids(self) -> tuple[int, ...]:
        lost = frozenset() if self.pool is None else self.pool.failed_cards
        return tuple(number for number in range(self.settings.cards) if number not in lost)

    def inspect(self, files: ModelFiles, model_filename: str) -> ModelFacts:
        return read_facts(files, model_filename)

    def parameter_violations(self, parameters: Mapping[str, str]) -> Iterator[Violation]:
        return parameter_violations(parameters, self.settings)

    def fact_violations(self, candidate: Candidate) -> Iterator[Violation]:
        if isinstance(candidate.facts, ExecFacts):
            depth = read_parameters(candidate.parameters).pipeline_depth
            yield from candidate.facts.violations(candidate, self.settings.hardware, depth)

    def load(self, request: LoadRequest) -> Instance:
        pool = self.ready_pool()
        path = request.files.path(request.model_filename)
        with ExitStack() as taken:
            executable = pool.shared_executable(path, lambda: load_executable(request.files, request.model_filename))
            taken.callback(pool.forget_executable, path)
            reject(self.check(request.candidate(facts_of(executable, executable.weight_bytes))))
            parameters = read_parameters(request.parameters)
            lease = Lease(request.model_name, request.version)
            placement = pool.allocate(lease, card=request.device_id, siblings=request.siblings, wanted=parameters.clusters)
            taken.callback(pool.allocator.release, placement)
            layout = SampleLayout(request.signature, executable.inputs, executable.outputs)
            try:
                loaded = CardExecutable(pool, placement, executable, layout, parameters)
            except StatusError as error:
                raise load_failure(error, placement) from error
            return GcuInstance(loaded, request.signature, on_close=taken.pop_all().close)
