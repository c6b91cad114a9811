"""`CardSettings`: what the operator says of the simulated cards, by `--backend-config=topsinference,NAME=VALUE`.

    cards           how many (1 if nothing is said); `instance_group.gpus` counts them from 0
    clusters        clusters of each card that the server uses: 1 to 6, from cluster 0 on; all if nothing is said
    pacing          none (as fast as this host), realtime or virtual: what modelled time does
    numerics        real, or off: all outputs are zeros, and copies take their time without moving anything
    faults          what goes wrong on the first card, such as reset@3,hang@10 (backends/stoker/backends/simulated/faults.py)
    host_threads    threads of the host that one run may use; the usable cores if nothing is said

They hold for all models: cards have one clock.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stoker.backends.api.cpu import usable_cores
from stoker.backends.api.errors import BackendSettingError
from stoker.backends.gcu.hardware import I20, GcuHardware
from stoker.backends.gcu.runtime import GcuSystem
from stoker.backends.gcu.runtime.system import DEFAULT_CARDS, MAX_CARDS
from stoker.backends.simulated.faults import FaultPlan
from stoker.backends.simulated.numerics import Numerics
from stoker.backends.simulated.pacing import Pacing

_MAX_THREADS = 1024


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
        """What `settings` say.

        Raises:
            BackendSettingError: an unknown name, or a value that cannot be taken; names all that are wrong.
        """
        readers: dict[str, Callable[[str], object]] = {
            "cards": lambda text: _number(text, MAX_CARDS),
            "clusters": lambda text: _number(text, I20.clusters),
            "pacing": lambda text: _choice(text, {each.value: each for each in Pacing}),
            "numerics": lambda text: _choice(text, {each.value: each for each in Numerics}),
            "faults": _faults,
            "host_threads": lambda text: _number(text, _MAX_THREADS),
        }
        wrong = [f"there is no setting '{name}'; there are {', '.join(readers)}" for name in settings if name not in readers]
        values = {}
        for name, reader in readers.items():
            if name in settings:
                try:
                    values[name] = reader(settings[name])
                except ValueError as error:
                    wrong.append(f"{name}='{settings[name][:80]}': {error}")
        if wrong:
            raise BackendSettingError(f"backend 'topsinference': {'; '.join(wrong)}")
        return cls(**values)  # type: ignore[arg-type] # each reader gives what its field takes

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


def _number(text: str, high: int) -> int:
    if text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= high:
        return int(text)
    raise ValueError(f"expected a whole number from 1 to {high}")


def _choice(text: str, choices: Mapping[str, object]) -> object:
    if text.lower() not in choices:
        raise ValueError(f"expected {', '.join(choices)}")
    return choices[text.lower()]


def _faults(text: str) -> str:
    for fault in FaultPlan.parse(text).faults:
        if fault.detail:
            raise ValueError(f"'{fault.kind.value}:{fault.detail}': faults of a card have no variants")
    return text
