"""`SimulatedIpus`: the runtime of simulated IPUs."""

import hashlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from stoker.backends.api.backend import Instance, LoadRequest
from stoker.backends.api.candidate import Candidate, Violation, reject
from stoker.backends.api.clock import Clock, SystemClock
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelFacts
from stoker.backends.devices.runtime import DeviceRuntime, simulated_description
from stoker.backends.ipu.serving.facts import PopefFacts, read_facts
from stoker.backends.ipu.serving.instance import PoplarInstance
from stoker.backends.ipu.serving.options import DevicePoolSettings, parameter_violations, read_parameters
from stoker.backends.ipu.serving.pool import IpuPool
from stoker.backends.ipu.serving.popef_executable import GraphLease


class SimulatedIpus(DeviceRuntime[IpuPool]):
    """Runs Stoker's PopEF files.

    Attributes:
        settings: The operator's settings.
    """

    is_simulated = True

    def __init__(self, settings: DevicePoolSettings) -> None:
        super().__init__()
        self.settings = settings

    @property
    def description(self) -> str:
        return simulated_description()

    @property
    def clock(self) -> Clock:
        return self.ready_pool().system.clock

    def make_pool(self) -> IpuPool:
        try:
            return IpuPool(self.settings.system(), SystemClock())
        except ValueError as error:
            raise ModelLoadError(f"the simulated IPUs cannot be set up: {error}") from error

    def inspect(self, files: ModelFiles, model_filename: str) -> ModelFacts:
        return read_facts(files, model_filename)

    def parameter_violations(self, parameters: Mapping[str, str]) -> Iterator[Violation]:
        return parameter_violations(parameters, self.settings)

    def fact_violations(self, candidate: Candidate) -> Iterator[Violation]:
        if isinstance(candidate.facts, PopefFacts):
            yield from candidate.facts.violations(candidate, read_parameters(candidate.parameters, self.settings))

    def load(self, request: LoadRequest) -> Instance:
        facts = read_facts(request.files, request.model_filename)
        reject(self.check(request.candidate(facts)))
        parameters = read_parameters(request.parameters, self.settings)
        graph = facts.graph(parameters.sub_graph)
        assert graph is not None  # `check` found no violation
        executable, options = facts.executable, parameters.run
        pool = self.ready_pool()
        lease = GraphLease(request.model_name, request.version, graph.index)
        loaded = pool.take(
            lease,
            executable,
            _digest(request.files.path(request.model_filename)),
            options,
            lambda: options.runtime_config(
                settings=self.settings,
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


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
