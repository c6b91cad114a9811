"""The fakes of the vendors' packages in this process, where their names belong to Stoker's shims."""

from types import ModuleType

from stoker.backends.devices.vendor_package import Found, Presence, VendorPackage


class InstalledPackage(VendorPackage):
    """A vendor's package that is installed: the module `fake`."""

    def __init__(self, fake: ModuleType, name: str) -> None:
        super().__init__([name], how_to_get="")
        self._module = fake
        self._name = name

    def find(self) -> Found:
        return Found(Presence.VENDOR, self._name, "/opt/vendor/__init__.py")

    def description(self) -> str:
        return f"{self._name} 2.4.1"
