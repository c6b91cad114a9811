"""`VendorPackage`: the Python package of a device's vendor, found and distinguished from Stoker's shim of the same name.

The vendors' packages are not on public indices, and Stoker neither depends on nor contains them. `stoker-compat` installs shims under
their names, which run on simulated devices. A shim must never pass for the vendor's runtime.
"""

import enum
import importlib
import importlib.util
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as distribution_version
from pathlib import Path
from types import ModuleType

from stoker.backends.api.errors import ModelLoadError

#: Every shim of `stoker-compat` has this line near its beginning; no vendor's package has.
SHIM_MARK = b"from stoker_compat import warn_beside_real"
_MARK_BYTES = 1 << 16


class Presence(enum.Enum):
    """The kind of package that is installed under a name."""

    VENDOR = "vendor"
    SHIM = "shim"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search, which imports nothing.

    Attributes:
        presence: What is installed.
        module: The module to import; the first one searched for if there is none.
        origin: Its file; empty if there is none.
    """

    presence: Presence
    module: str
    origin: str = ""

    @property
    def package(self) -> str:
        """The import name of the package."""
        return self.module.partition(".")[0]

    def __str__(self) -> str:
        if self.presence is Presence.ABSENT:
            return f"no package '{self.package}' is installed"
        if self.presence is Presence.SHIM:
            return f"package '{self.package}' at {self.origin} is Stoker's shim, which simulates (uninstall stoker-compat)"
        return f"package '{self.package}' at {self.origin}"


class VendorPackage:
    """One vendor's package. Any thread may use it."""

    def __init__(self, modules: Sequence[str], *, how_to_get: str) -> None:
        """Searches for the packages of `modules`, the preferred one first.

        Args:
            modules: The modules that runtimes import, such as `poprt.runtime`.
            how_to_get: Where the vendor's package is from, for error texts.
        """
        self._modules = tuple(modules)
        self._how_to_get = how_to_get
        self._lock = threading.Lock()
        self._module: ModuleType | None = None

    def find(self) -> Found:
        """Looks for the first of the packages that is the vendor's; else reports a shim, else that there is none. Imports nothing."""
        found = [_find(module) for module in self._modules]
        for presence in (Presence.VENDOR, Presence.SHIM):
            for each in found:
                if each.presence is presence:
                    return each
        return Found(Presence.ABSENT, self._modules[0])

    def load(self) -> ModuleType:
        """Imports the module of the vendor's package.

        Raises:
            ModelLoadError: it is not installed, a shim has its name, or it cannot be imported; the text says what was found, and where the
                package is from.
        """
        with self._lock:
            if self._module is None:
                self._module = self._import()
            return self._module

    def description(self) -> str:
        """The module and the version that its package states, else that of its distribution.

        Raises:
            ModelLoadError: as `load`.
        """
        module = self.load().__name__
        package = module.partition(".")[0]
        stated = getattr(sys.modules[package], "__version__", None)
        if isinstance(stated, str) and stated.strip():
            return f"{module} {stated.strip()}"
        try:
            return f"{module} {distribution_version(package)}"
        except PackageNotFoundError:
            return f"{module} of unknown version"

    def _import(self) -> ModuleType:
        found = self.find()
        if found.presence is not Presence.VENDOR:
            named = " or ".join(f"'{module.partition('.')[0]}'" for module in self._modules)
            raise ModelLoadError(f"runtime=vendor needs the vendor's package {named}: {found}; {self._how_to_get}")
        try:
            return importlib.import_module(found.module)
        except Exception as error:
            # A native package may fail in any way if the driver or a library is missing.
            raise ModelLoadError(f"{found} cannot be imported: {type(error).__name__}: {error}; {self._how_to_get}") from error


def _find(module: str) -> Found:
    package = module.partition(".")[0]  # only top-level names are found without an import
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # an imported module without a spec
        return Found(Presence.ABSENT, module)
    if spec is None or spec.origin is None:
        return Found(Presence.ABSENT, module)
    return Found(Presence.SHIM if _is_shim(Path(spec.origin)) else Presence.VENDOR, module, spec.origin)


def _is_shim(origin: Path) -> bool:
    with origin.open("rb") as file:
        return SHIM_MARK in file.read(_MARK_BYTES)
