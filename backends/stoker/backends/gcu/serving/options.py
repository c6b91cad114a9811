"""The options of simulated GCU cards.

The operator's settings, by `--backend-config=topsinference,NAME=VALUE`:

    cards           how many (1 if nothing is said); `instance_group.gpus` counts them from 0
    clusters        clusters of each card that the server uses: 1 to 6, from cluster 0 on; all if nothing is said
    pacing          none (as fast as this host), realtime or virtual: what modelled time does
    numerics        real, or off: all outputs are zeros, and copies take their time without moving anything
    faults          what goes wrong on the first card, such as reset@3,hang@10 (backends/stoker/backends/simulated/faults.py)
    host_threads    threads of the host that one run may use; the usable cores if nothing is said

They hold for all models: cards have one clock.

config.pbtxt `parameters` of a model:

    clusters          clusters that each instance runs on, 1 to those of a card; by default the instances of a version share their card's
    pipeline_depth    1 to 8 batches of an instance in flight, each with its own stream and buffers; default 2, so that one is copied
                      while another runs. Each takes device memory for its buffers
    timeout_ms        how long a batch may take on the device, in milliseconds of its clock; default 600000, which leaves time for large
                      models that a slow host computes; 0: without limit
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from stoker.backends.api.candidate import Violation
from stoker.backends.api.cpu import usable_cores
from stoker.backends.gcu.hardware import I20, GcuHardware
from stoker.backends.gcu.runtime import GcuSystem
from stoker.backends.gcu.runtime.system import DEFAULT_CARDS, MAX_CARDS
from stoker.backends.simulated.faults import FaultPlan
from stoker.backends.simulated.numerics import Numerics
from stoker.backends.simulated.pacing import Pacing
from stoker.backends.simulated.serving.options import ParameterReader, SettingsReader

MAX_PIPELINE_DEPTH = 8
_DEFAULT_PIPELINE_DEPTH = 2
_DEFAULT_TIMEOUT_MS = 600_000
_MAX_TIMEOUT_MS = 86_400_000
_MAX_THREADS = 1024

PARAMETER_KEYS = frozenset({"clusters", "pipeline_depth", "timeout_ms"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSettings:
    """Settings of the whole backend, read and checked.

    Attributes:
        hardware: What the cards are.
        cards, clusters, pacing, numerics, faults, host_threads: As above; the faults as they are written.
    """

    hardware: GcuHardware = I20
    cards: int = DEFAULT_CARDS
    clusters: int = I20.clusters
    pacing: Pacing = Pacing.NONE
    numerics: Numerics = Numerics.REAL
    faults: str = ""
    host_threads: int = field(default_factory=usable_cores)

    @classmethod
    def read(cls, settings: Mapping[str, str]) -> "CardSettings":
        """Reads the operator's settings.

        Raises:
            BackendSettingError: an unknown name, or a wrong value; names all that are wrong.
        """
        reader = SettingsReader("topsinference", settings, ["cards", "clusters", "pacing", "numerics", "faults", "host_threads"])
        read = cls(
            cards=reader.number("cards", DEFAULT_CARDS, 1, MAX_CARDS),
            clusters=reader.number("clusters", I20.clusters, 1, I20.clusters),
            pacing=reader.choice("pacing", Pacing.NONE),
            numerics=reader.choice("numerics", Numerics.REAL),
            faults=_faults(reader),
            host_threads=reader.number("host_threads", usable_cores(), 1, _MAX_THREADS),
        )
        reader.check()
        return read

    @property
    def moves_bytes(self) -> bool:
        """Whether what is copied between host and card matters: something is computed, or garbage may be put out on purpose."""
        return self.numerics is Numerics.REAL or bool(self.faults)

    def system(self) -> GcuSystem:
        """The cards they describe."""
        return GcuSystem(
            self.cards,
            hardware=self.hardware,
            pacing=self.pacing,
            numerics=self.numerics,
            faults=[FaultPlan.parse(self.faults)],
            host_threads=self.host_threads,
        )


def _faults(reader: SettingsReader) -> str:
    text = reader.values.get("faults", "")
    try:
        for fault in FaultPlan.parse(text).faults:
            if fault.detail:
                reader.reject("faults", f"'{fault.kind.value}:{fault.detail}': faults of a card have no variants")
                return ""
    except ValueError as error:
        reader.reject("faults", str(error))
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParameters:
    """All that config.pbtxt may say of one model, read.

    Attributes:
        clusters: Of each instance; None: an even share.
        pipeline_depth: Batches in flight.
        timeout_s: Of a batch; None: for ever.
    """

    clusters: int | None = None
    pipeline_depth: int = _DEFAULT_PIPELINE_DEPTH
    timeout_s: float | None = _DEFAULT_TIMEOUT_MS / 1000


def parameter_violations(parameters: Mapping[str, str], settings: CardSettings) -> Iterator[Violation]:
    """Every parameter whose value is wrong."""
    reader = ParameterReader(parameters)
    _read(reader, settings.clusters)
    yield from reader.violations


def read_parameters(parameters: Mapping[str, str]) -> ModelParameters:
    """Reads `parameters`. REQUIRES: `parameter_violations` found none."""
    return _read(ParameterReader(parameters), I20.clusters)


def _read(reader: ParameterReader, clusters: int) -> ModelParameters:
    return ModelParameters(
        clusters=reader.number("clusters", None, 1, clusters),
        pipeline_depth=reader.number("pipeline_depth", _DEFAULT_PIPELINE_DEPTH, 1, MAX_PIPELINE_DEPTH),
        timeout_s=reader.number("timeout_ms", _DEFAULT_TIMEOUT_MS, 0, _MAX_TIMEOUT_MS) / 1000 or None,
    )
