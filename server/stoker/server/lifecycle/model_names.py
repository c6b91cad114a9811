"""`ModelNames`: the models of the table by the names that clients use. Pure."""

from collections.abc import Sequence
from pathlib import Path

from stoker.backends.api.errors import InvalidRequest
from stoker.server.core.model_key import name_of
from stoker.server.lifecycle.namespaces import ambiguity
from stoker.server.lifecycle.table import ModelRecord


class ModelNames:
    """The models by the names that clients use. Confined to: the event loop.

    Attributes:
        unique: The records by name, of those names that one model has; without namespaces the table itself.
    """

    def __init__(self, records: dict[str, ModelRecord], roots: Sequence[Path] = ()) -> None:
        """`records`: the table by key. `roots`: the repositories, if each is a namespace; else empty."""
        self.is_on = bool(roots)
        self._roots = roots
        self._records = records
        self._keys: dict[str, list[str]] = {}
        self.unique: dict[str, ModelRecord] = {} if self.is_on else records

    def add(self, key: str) -> None:
        """Notes that the table has the model `key` now."""
        if self.is_on:
            name = name_of(key)
            self._set(name, sorted({*self._keys.get(name, ()), key}))

    def remove(self, key: str) -> None:
        """Notes that the table has the model `key` no longer."""
        if self.is_on:
            name = name_of(key)
            self._set(name, [each for each in self._keys.get(name, ()) if each != key])

    def ambiguity(self, name: str) -> str:
        """Why `name` does not identify a model of the table; empty: several models of that name are not why."""
        keys = self._keys.get(name, ())
        return ambiguity(name, keys, self._roots) if len(keys) > 1 else ""

    def key(self, name: str) -> str | None:
        """The key of the model of the table with this name; None: it has none.

        Raises:
            InvalidRequest: several have this name.
        """
        record = self.unique.get(name)
        if record is None and (reason := self.ambiguity(name)):
            raise InvalidRequest(reason)
        return None if record is None else record.name

    def _set(self, name: str, keys: list[str]) -> None:
        self._keys[name] = keys
        self.unique.pop(name, None)
        if len(keys) == 1:
            self.unique[name] = self._records[keys[0]]
        elif not keys:
            del self._keys[name]
