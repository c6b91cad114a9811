"""`SimulatedBackend`: the part of the plug-in contract that all backends of simulated devices implement alike."""

import abc
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from stoker.backends.api.backend import Backend
from stoker.backends.api.candidate import Candidate, Violation
from stoker.backends.api.figures import Figure
from stoker.backends.simulated.serving.pool import DevicePool

SettingsT = TypeVar("SettingsT")
PoolT = TypeVar("PoolT", bound=DevicePool)


class SimulatedBackend(Backend, Generic[SettingsT, PoolT]):
    """Creates its devices with the first load; before that it costs nothing.

    Attributes:
        settings: The operator's settings.
        pool: The devices; None before the first load.
    """

    def __init__(self, settings: SettingsT) -> None:
        """Begins with `settings`; `configure` replaces them."""
        self.settings = settings
        self.pool: PoolT | None = None
        self._pool_lock = threading.Lock()

    @abc.abstractmethod
    def read_settings(self, settings: Mapping[str, str]) -> SettingsT:
        """Raises:
        BackendSettingError: settings are wrong; names all of them.
        """

    @abc.abstractmethod
    def make_pool(self) -> PoolT:
        """Creates the devices that `settings` describe.

        Raises:
            ModelLoadError: they cannot be created.
        """

    @abc.abstractmethod
    def parameter_violations(self, parameters: Mapping[str, str]) -> Iterator[Violation]:
        """Every parameter of config.pbtxt whose value is wrong."""

    @abc.abstractmethod
    def fact_violations(self, candidate: Candidate) -> Iterator[Violation]:
        """What speaks against serving the file of `candidate`, whose parameters are right."""

    def configure(self, settings: Mapping[str, str]) -> None:
        self.settings = self.read_settings(settings)

    def check(self, candidate: Candidate) -> Iterator[Violation]:
        wrong = list(self.parameter_violations(candidate.parameters))
        yield from wrong or self.fact_violations(candidate)

    def figures(self) -> Iterable[Figure]:
        return () if self.pool is None else self.pool.metrics()

    def notices(self) -> Iterable[str]:
        return () if self.pool is None else self.pool.notices()

    def ready_pool(self) -> PoolT:
        """The devices, created at the first call.

        Raises:
            ModelLoadError: they cannot be created.
        """
        with self._pool_lock:
            if self.pool is None:
                self.pool = self.make_pool()
            return self.pool
