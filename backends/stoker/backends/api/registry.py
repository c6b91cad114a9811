"""Finds backends by the entry-point group `stoker.backends`; a backend's module is imported when it is first asked for."""

import threading
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

from stoker.backends.api.backend import Backend
from stoker.backends.api.errors import BackendSettingError, ModelLoadError

GROUP = "stoker.backends"


class BackendRegistry:
    """The installed backends, by name, alias and platform. Safe to ask from several threads: models load side by side."""

    def __init__(self, backends: tuple[Backend, ...] | None = None) -> None:
        """Holds `backends`; None: those installed as entry points, each named after its backend and imported at first use."""
        self._loaded: dict[str, Backend] = {b.name: b for b in backends or ()}
        self._pending: dict[str, EntryPoint] = {} if backends is not None else {point.name: point for point in entry_points(group=GROUP)}
        self._failed: dict[str, str] = {}
        self._settings: dict[str, dict[str, str]] = {}
        self._lock = threading.RLock()

    def names(self) -> list[str]:
        """Every known backend name, sorted."""
        return sorted({*self._loaded, *self._pending, *self._failed})

    def all(self) -> list[Backend]:
        """Every backend that imports; one that does not is left out here and named by `get`."""
        with self._lock:
            for name in list(self._pending):
                self._load(name)
            return [self._loaded[name] for name in sorted(self._loaded)]

    def in_use(self) -> list[Backend]:
        """The backends imported so far, sorted by name."""
        return [self._loaded[name] for name in sorted(self._loaded.copy())]

    def configure(self, settings: Mapping[str, Mapping[str, str]]) -> None:
        """Hands each backend, by name or alias, its settings: all of them at once, whatever spelling each was given under.

        Raises:
            BackendSettingError: there is no such backend, it does not take them, or one is given twice.
        """
        by_backend: dict[Backend, dict[str, str]] = {}
        for name, values in settings.items():
            try:
                backend = self.get(name)
            except ModelLoadError as error:
                raise BackendSettingError(error.message) from None
            known = by_backend.setdefault(backend, {})
            for key in values.keys() & known.keys():
                raise BackendSettingError(f"backend '{backend.name}': '{key}' is given twice, once for '{name}'")
            known |= values
        for backend, together in by_backend.items():
            backend.configure(together)
            self._settings[backend.name] = together

    def settings(self, name: str) -> dict[str, str]:
        """The settings that the backend `name` was given, for its worker processes."""
        return self._settings.get(name, {})

    def get(self, name: str) -> Backend:
        """The backend whose name, alias or platform is `name`.

        Raises:
            ModelLoadError: none is, or its package is not installed.
        """
        with self._lock:
            if name in self._pending:
                self._load(name)
        if name in self._loaded:
            return self._loaded[name]
        if name in self._failed:
            raise ModelLoadError(f"backend '{name}' is not usable here: {self._failed[name]}")
        claimant = self._claimant(name)
        if claimant is None:
            raise ModelLoadError(f"no backend or platform '{name}'; installed backends: {', '.join(self._offered()) or 'none'}")
        return claimant

    def _claimant(self, name: str) -> Backend | None:
        """Returns the backend with the alias or platform `name`, and imports backends only until it is found."""
        with self._lock:
            # Platforms mostly begin with their backend's name: `onnxruntime_onnx`.
            for pending in (None, *sorted(self._pending, key=lambda each: (not name.startswith(each), each))):
                if pending is not None:
                    self._load(pending)
                for backend in self.in_use():
                    if name in backend.aliases or name in backend.platforms:
                        return backend
        return None

    def _offered(self) -> list[str]:
        """The names of backends for an error; without test backends."""
        return [name for name in self.names() if name not in self._loaded or not self._loaded[name].is_for_tests]

    def _load(self, name: str) -> None:
        point = self._pending.pop(name)
        try:
            backend = point.load()()
        except Exception as error:  # noqa: BLE001 - a third-party package: its import must not stop the other backends
            self._failed[name] = f"{type(error).__name__}: {error}"
            return
        if not isinstance(backend, Backend):
            self._failed[name] = f"its entry point {point.value} is no Backend"
        elif backend.name != name:
            self._failed[name] = f"its entry point {point.value} calls itself '{backend.name}'"
        else:
            self._loaded[name] = backend
