"""`DeviceRuntime`: the interface between a backend and the devices that run its models, and `DeviceBackend`, which selects a runtime.

A backend of devices has two runtimes. The simulated one is Stoker's. The vendor's one adapts the package that the vendor of the device
supplies, so that the same server serves models on a real card. The setting `runtime` (`--backend-config=NAME,runtime=VALUE`) selects:

    simulated   the default: modelled devices
    vendor      real devices; without the vendor's package, every load fails and names it
    auto        vendor if the vendor's package is installed, else simulated; the server says which at its start

The server calls the instances that a runtime loads directly; only inspection, loads and metrics pass through the backend.
"""

import abc
import enum
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version as distribution_version
from typing import Any, Generic, TypeVar

from stoker.backends.api.backend import Backend, Figure, Instance, LoadRequest
from stoker.backends.api.candidate import Candidate, Violation
from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import BackendSettingError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelFacts
from stoker.backends.devices.options import RUNTIME_SETTING
from stoker.backends.devices.pool import DevicePool
from stoker.backends.devices.vendor_package import Found, Presence, VendorPackage

log = logging.getLogger(__name__)


def simulated_description() -> str:
    """Returns `DeviceRuntime.description` of the simulated runtimes."""
    return f"simulated, Stoker {distribution_version('stoker')}"


PoolT = TypeVar("PoolT", bound=DevicePool)


class RuntimeKind(enum.Enum):
    """The values of the setting `runtime`."""

    SIMULATED = "simulated"
    VENDOR = "vendor"
    AUTO = "auto"


class DeviceRuntime(abc.ABC, Generic[PoolT]):
    """Loads executable files to devices and runs them. Any thread may use it.

    A runtime creates its devices with the first load; before that it costs nothing.

    Attributes:
        pool: The devices; None before the first load.
    """

    #: Whether its devices are modelled. Metrics, notices and reports carry this as the label `simulated`.
    is_simulated: bool

    def __init__(self) -> None:
        self.pool: PoolT | None = None
        self._pool_lock = threading.Lock()

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """The runtime with its version, such as `simulated, Stoker 0.3.0` or `vendor, TopsInference 2.4`.

        Raises:
            ModelLoadError: the vendor's package is needed and missing.
        """

    @property
    @abc.abstractmethod
    def clock(self) -> Clock:
        """The clock on which the work of the devices takes time: virtual under virtual pacing, else that of the machine.

        Raises:
            ModelLoadError: the devices cannot be created.
        """

    @abc.abstractmethod
    def make_pool(self) -> PoolT:
        """Creates the devices.

        Raises:
            ModelLoadError: they cannot be created.
        """

    @abc.abstractmethod
    def inspect(self, files: ModelFiles, model_filename: str) -> ModelFacts:
        """See `Backend.inspect`. If the vendor's files cannot be read without a device, inputs and outputs are None."""

    @abc.abstractmethod
    def parameter_violations(self, parameters: Mapping[str, str]) -> Iterator[Violation]:
        """Every parameter of config.pbtxt whose value is wrong."""

    @abc.abstractmethod
    def fact_violations(self, candidate: Candidate) -> Iterator[Violation]:
        """Reasons not to serve the file of `candidate`. REQUIRES: its parameters are valid."""

    @abc.abstractmethod
    def load(self, request: LoadRequest) -> Instance:
        """See `Backend.load`."""

    def device_ids(self) -> tuple[int, ...]:
        """See `Backend.device_ids`."""
        return ()

    def check(self, candidate: Candidate) -> Iterator[Violation]:
        """See `Backend.check`."""
        wrong = list(self.parameter_violations(candidate.parameters))
        yield from wrong or self.fact_violations(candidate)

    def ready_pool(self) -> PoolT:
        """The devices, created at the first call.

        Raises:
            ModelLoadError: they cannot be created.
        """
        with self._pool_lock:
            if self.pool is None:
                self.pool = self.make_pool()
            return self.pool

    def notices(self) -> Iterator[str]:
        """Notices about the loaded models; the first one names the runtime. None without models."""
        if self.pool is not None and self.pool.models():
            yield from self.pool.notices(self.description)


class DeviceBackend(Backend):
    """A backend of devices.

    Attributes:
        runtime: The selected runtime.
    """

    shares_devices = True
    #: The vendor's package that the runtime `vendor` adapts.
    package: VendorPackage

    def __init__(self) -> None:
        self._wanted = RuntimeKind.SIMULATED
        self.runtime = self.make_runtime(RuntimeKind.SIMULATED, {})

    @abc.abstractmethod
    def make_runtime(self, kind: RuntimeKind, settings: Mapping[str, str]) -> DeviceRuntime[Any]:
        """Makes the runtime `kind`, which is not AUTO, with the operator's other settings.

        Raises:
            BackendSettingError: settings are wrong; names all of them.
        """

    def wanted_kind(self, settings: Mapping[str, str]) -> RuntimeKind:
        """The runtime that the operator's settings ask for.

        Raises:
            BackendSettingError: there is no such runtime.
        """
        text = settings.get(RUNTIME_SETTING, RuntimeKind.SIMULATED.value)
        try:
            return RuntimeKind(text.lower())
        except ValueError:
            known = ", ".join(kind.value for kind in RuntimeKind)
            raise BackendSettingError(f"backend '{self.name}': {RUNTIME_SETTING}='{text[:80]}': expected {known}") from None

    def configure(self, settings: Mapping[str, str]) -> None:
        kind = wanted = self.wanted_kind(settings)
        if wanted is RuntimeKind.AUTO:
            found = self.package.find()
            kind = RuntimeKind.VENDOR if found.presence is Presence.VENDOR else RuntimeKind.SIMULATED
            log.log(logging.INFO if kind is RuntimeKind.VENDOR else logging.WARNING, "backend %s: %s", self.name, _chosen(kind, found))
        self.runtime = self.make_runtime(kind, {name: value for name, value in settings.items() if name != RUNTIME_SETTING})
        self._wanted = wanted

    def inspect(self, files: ModelFiles, model_filename: str) -> ModelFacts:
        return self.runtime.inspect(files, model_filename)

    def check(self, candidate: Candidate) -> Iterator[Violation]:
        return self.runtime.check(candidate)

    def load(self, request: LoadRequest) -> Instance:
        return self.runtime.load(request)

    def device_ids(self) -> tuple[int, ...]:
        return self.runtime.device_ids()

    def figures(self) -> Iterable[Figure]:
        return () if self.runtime.pool is None else self.runtime.pool.metrics()

    def notices(self) -> Iterator[str]:
        notices = list(self.runtime.notices())
        if notices:
            yield from self._selection_notices()
        yield from notices

    def _selection_notices(self) -> Iterator[str]:
        """States what `auto` chose, and that real devices may be unused."""
        found = self.package.find()
        if self._wanted is RuntimeKind.AUTO:
            yield _chosen(RuntimeKind.SIMULATED if self.runtime.is_simulated else RuntimeKind.VENDOR, found)
        elif self.runtime.is_simulated and found.presence is Presence.VENDOR:
            yield f"backend {self.name} simulates its devices, although the vendor's {found} is installed: runtime=vendor uses it"


def _chosen(kind: RuntimeKind, found: Found) -> str:
    return f"runtime=auto chose {kind.value}: {found}"
