"""The `topsinference` backend: `model.exec` files on simulated GCU cards.

A version folder holds `model.exec`. config.pbtxt `parameters` and the operator's settings are listed in
`serving/options.py`. An instance group of KIND_GPU, which is what KIND_AUTO becomes, gets `count` instances on each card of its `gpus`,
or on every card; with KIND_CPU or KIND_MODEL, `count` instances on the cards with the most free clusters.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack

from stoker.backends.api.backend import Instance, LoadRequest
from stoker.backends.api.candidate import Candidate, Violation, reject
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelFacts
from stoker.backends.gcu.runtime import StatusError
from stoker.backends.gcu.serving.facts import ExecFacts, facts_of, load_executable, read_facts
from stoker.backends.gcu.serving.instance import CardExecutable, GcuInstance
from stoker.backends.gcu.serving.options import PARAMETER_KEYS, CardSettings, parameter_violations, read_parameters
from stoker.backends.gcu.serving.pool import GcuPool, load_failure
from stoker.backends.gcu.serving.sample_layout import SampleLayout
from stoker.backends.simulated.serving.pool import Lease, SimulatedBackend


class TopsInferenceBackend(SimulatedBackend[CardSettings, GcuPool]):
    """Serves `.exec` files."""

    name = "topsinference"
    platforms = ("topsinference",)
    aliases = ("gcu",)
    default_model_filename = "model.exec"
    parameter_keys = PARAMETER_KEYS
    instance_kinds = ("KIND_GPU", "KIND_CPU", "KIND_MODEL")

    def __init__(self) -> None:
        super().__init__(CardSettings())

    def read_settings(self, settings: Mapping[str, str]) -> CardSettings:
        return CardSettings.read(settings)

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
