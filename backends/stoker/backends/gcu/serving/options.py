"""The options of GCU cards.

The operator's settings, by `--backend-config=topsinference,NAME=VALUE`:

    runtime         simulated (default), vendor or auto: see `stoker.backends.devices.runtime`
    card            type of the cards: i20 (default), i10 or T20; an executable for another card is rejected
    cards           number of cards (default 1); `instance_group.gpus` counts them from 0
    clusters        clusters of each card that the server uses: 1 to 6, from cluster 0 on; default: all

The others are for simulated cards:

    pacing          none (as fast as this host), realtime or virtual: the effect of modelled time on the run
    numerics        real, or off: all outputs are zeros, and copies take modelled time without moving bytes
    faults          faults to inject on the first card, such as reset@3,hang@10 (backends/stoker/backends/simulated/faults.py)
    host_threads    threads of the host that one run may use; default: the usable cores

They apply to all models, because the cards share one clock.

config.pbtxt `parameters` of a model:

    clusters          clusters that each instance runs on, 1 to the number of a card; by default the instances of a version divide
                      their card's
    pipeline_depth    1 to 8 batches of an instance in flight, each with its own stream and buffers in device memory; default 2, so
                      that one is copied while another runs
    timeout_ms        how long a batch may take on the device, in milliseconds of its clock; default 600000, enough for large models
                      on a slow host; 0: no limit
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from stoker.backends.api.candidate import Violation
from stoker.backends.api.cpu import usable_cores
from stoker.backends.devices.options import ParameterReader, SettingsReader
from stoker.backends.gcu.hardware import CARD_NAMES, CARDS, I20, GcuHardware
from stoker.backends.gcu.runtime import GcuSystem
from stoker.backends.gcu.runtime.system import DEFAULT_CARDS, MAX_CARDS
from stoker.backends.gcu.timing import DEFAULT_PIPELINE_DEPTH
from stoker.backends.simulated.faults import FaultPlan
from stoker.backends.simulated.numerics import Numerics
from stoker.backends.simulated.pacing import Pacing

MAX_PIPELINE_DEPTH = 8
_DEFAULT_TIMEOUT_MS = 600_000
_MAX_TIMEOUT_MS = 86_400_000
_MAX_THREADS = 1024

_SHARED = ("cards", "clusters")
_SIMULATED = ("card", "pacing", "numerics", "faults", "host_threads")

PARAMETER_KEYS = frozenset({"clusters", "pipeline_depth", "timeout_ms"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSettings:
    """The checked settings of the whole backend.

    Attributes:
        hardware: The published figures of the cards.
        cards, clusters, pacing, numerics, host_threads: See the module's docstring.
        faults: The text of the setting.
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
            BackendSettingError: a name is unknown or a value is invalid; the text names all of them.
        """
        reader = SettingsReader("topsinference", settings, [*_SHARED, *_SIMULATED])
        hardware = _card(reader)
        read = cls(
            hardware=hardware,
            cards=reader.number("cards", DEFAULT_CARDS, 1, MAX_CARDS),
            clusters=reader.number("clusters", hardware.clusters, 1, hardware.clusters),
            pacing=reader.choice("pacing", Pacing.NONE),
            numerics=reader.choice("numerics", Numerics.REAL),
            faults=_faults(reader),
            host_threads=reader.number("host_threads", usable_cores(), 1, _MAX_THREADS),
        )
        reader.check()
        return read

    @property
    def moves_bytes(self) -> bool:
        """Whether copies between host and card must move bytes: outputs are computed, or a fault may write garbage to them."""
        return self.numerics is Numerics.REAL or bool(self.faults)

    def system(self) -> GcuSystem:
        """Creates the system that the settings describe."""
        return GcuSystem(
            self.cards,
            hardware=self.hardware,
            pacing=self.pacing,
            numerics=self.numerics,
            faults=[FaultPlan.parse(self.faults)],
            host_threads=self.host_threads,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorSettings:
    """The checked settings of the runtime of real cards.

    Attributes:
        cards, clusters: See the module's docstring. The vendor's library does not state them.
    """

    cards: int = DEFAULT_CARDS
    clusters: int = I20.clusters

    @classmethod
    def read(cls, settings: Mapping[str, str]) -> "VendorSettings":
        """Reads the operator's settings.

        Raises:
            BackendSettingError: a name is unknown, a value is invalid, or a setting is for simulated cards; the text names all of them.
        """
        reader = SettingsReader("topsinference", settings, [*_SHARED, *_SIMULATED])
        for name in _SIMULATED:
            if name in settings:
                reader.reject(name, "is for simulated cards, and the runtime is the vendor's")
        read = cls(
            cards=reader.number("cards", DEFAULT_CARDS, 1, MAX_CARDS), clusters=reader.number("clusters", I20.clusters, 1, I20.clusters)
        )
        reader.check()
        return read


def _card(reader: SettingsReader) -> GcuHardware:
    text = reader.values.get("card", I20.name)
    found = CARDS.get(text.lower())
    if found is None:
        reader.reject("card", f"there is no '{text}'; expected {', '.join(CARD_NAMES)}")
    return found or I20


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
    """The parsed config.pbtxt `parameters` of one model.

    Attributes:
        clusters: Clusters of each instance; None: an even share.
        pipeline_depth: Batches in flight.
        timeout_s: Longest time of a batch, in seconds; None: no limit.
    """

    clusters: int | None = None
    pipeline_depth: int = DEFAULT_PIPELINE_DEPTH
    timeout_s: float | None = _DEFAULT_TIMEOUT_MS / 1000


def parameter_violations(parameters: Mapping[str, str], settings: CardSettings | VendorSettings) -> Iterator[Violation]:
    """Returns a violation for each parameter with an invalid value."""
    reader = ParameterReader(parameters)
    _read(reader, settings.clusters)
    yield from reader.violations


def read_parameters(parameters: Mapping[str, str]) -> ModelParameters:
    """Reads `parameters`. REQUIRES: `parameter_violations` found none."""
    return _read(ParameterReader(parameters), I20.clusters)


def _read(reader: ParameterReader, clusters: int) -> ModelParameters:
    return ModelParameters(
        clusters=reader.number("clusters", None, 1, clusters),
        pipeline_depth=reader.number("pipeline_depth", DEFAULT_PIPELINE_DEPTH, 1, MAX_PIPELINE_DEPTH),
        timeout_s=reader.number("timeout_ms", _DEFAULT_TIMEOUT_MS, 0, _MAX_TIMEOUT_MS) / 1000 or None,
    )
