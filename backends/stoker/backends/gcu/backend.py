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
from stoker.backends.api.candidate import Candidate, Misfit, refuse
from stoker.backends.api.figures import Figure
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelFacts
from stoker.backends.gcu.runtime import StatusError
from stoker.backends.gcu.serving.facts import ExecFacts, facts_of, load_executable, read_facts
from stoker.backends.gcu.serving.figures import fleet_figures
from stoker.backends.gcu.serving.fleet import Fleet, load_failure
from stoker.backends.gcu.serving.instance import GcuInstance
from stoker.backends.gcu.serving.notices import fleet_notices
from stoker.backends.gcu.serving.occupant import Occupant
from stoker.backends.gcu.serving.parameters import PARAMETER_KEYS, parameter_misfits, read_parameters
from stoker.backends.gcu.serving.placement import Tenant
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
        self._fleet: Fleet | None = None
        self._lock = threading.Lock()

    def configure(self, settings: Mapping[str, str]) -> None:
        self._settings = CardSettings.read(settings)

    def device_ids(self) -> tuple[int, ...]:
        lost = frozenset() if self._fleet is None else self._fleet.lost_cards
        return tuple(number for number in range(self._settings.cards) if number not in lost)

    def inspect(self, files: ModelFiles, model_filename: str) -> ModelFacts:
        return read_facts(files, model_filename)

    def check(self, candidate: Candidate) -> Iterator[Misfit]:
        wrong = list(parameter_misfits(candidate.parameters, self._settings))
        yield from wrong
        if not wrong and isinstance(candidate.facts, ExecFacts):
            depth = read_parameters(candidate.parameters).pipeline_depth
            yield from candidate.facts.misfits(candidate, self._settings.hardware, depth)

    def load(self, request: LoadRequest) -> Instance:
        fleet = self._ready_fleet()
        path = request.files.path(request.model_filename)
        with ExitStack() as taken:
            executable = fleet.shared_executable(path, lambda: load_executable(request.files, request.model_filename))
            taken.callback(fleet.forget_executable, path)
            refuse(self.check(request.candidate(facts_of(executable, executable.weight_bytes))))
            parameters = read_parameters(request.parameters)
            tenant = Tenant(request.model_name, request.version)
            place = fleet.place(tenant, card=request.device_id, siblings=request.siblings, wanted=parameters.clusters)
            taken.callback(fleet.ledger.release, place)
            layout = SampleLayout(request.signature, executable.inputs, executable.outputs)
            try:
                occupant = Occupant(fleet, place, executable, layout, parameters)
            except StatusError as error:
                raise load_failure(error, place) from error
            return GcuInstance(occupant, request.signature, on_close=taken.pop_all().close)

    def figures(self) -> Iterable[Figure]:
        return () if self._fleet is None else fleet_figures(self._fleet)

    def notices(self) -> Iterable[str]:
        return () if self._fleet is None else fleet_notices(self._fleet)

    def _ready_fleet(self) -> Fleet:
        with self._lock:
            if self._fleet is None:
                self._fleet = Fleet(self._settings)
            return self._fleet
