"""`DevicePool`: the simulated devices of one backend, and the models that run on them."""

import abc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from stoker.backends.api.figures import Figure


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of one version's instances to use devices of the pool."""

    model: str
    version: int

    def __str__(self) -> str:
        return f"version {self.version} of '{self.model}'"


class DevicePool(abc.ABC):
    """Any thread may use it."""

    @abc.abstractmethod
    def metrics(self) -> Iterator[Figure]:
        """All metrics of the devices, grouped by name."""

    @abc.abstractmethod
    def models(self) -> Sequence[str]:
        """Names of the loaded models; a name may occur several times."""

    @abc.abstractmethod
    def hardware(self) -> str:
        """The devices, for a notice: `simulated IPUs, of which there are 4`."""

    @abc.abstractmethod
    def sharing_notices(self) -> Iterator[str]:
        """One line for each device on which models compete."""

    @abc.abstractmethod
    def models_without_numerics(self) -> Sequence[str]:
        """Names of the loaded models whose outputs are zeros."""

    def notices(self) -> Iterator[str]:
        """What an operator should know of the loaded models when the server starts: one line each."""
        models = self.models()
        if not models:
            return
        yield f"{quoted(models)} on {self.hardware()}"
        yield from self.sharing_notices()
        if zeros := self.models_without_numerics():
            yield f"numerics are off for {quoted(zeros)}: all outputs are zeros"


def quoted(names: Iterable[str]) -> str:
    """The names in quotes, each once."""
    return ", ".join(f"'{name}'" for name in dict.fromkeys(names))
