"""`Resolver`: finds the version that a request runs on."""

from stoker.backends.api.errors import NotFound, ServingError, Unavailable, UnknownModel
from stoker.server.lifecycle.servable import Servable
from stoker.server.lifecycle.settings import shown
from stoker.server.lifecycle.table import ModelRecord


class Resolver:
    """Confined to: the event loop."""

    __slots__ = ("_table",)

    def __init__(self, table: dict[str, ModelRecord]) -> None:
        """`table`: the records by name, which others change."""
        self._table = table

    def resolve(self, name: str, version: int | None) -> Servable:
        """The servable for a request to (`name`, `version`); `version` None: the highest READY one.

        Raises:
            UnknownModel: no such model. NotFound: no such version. Unavailable: known, but not READY.
        """
        record = self._table.get(name)
        if record is not None:
            serving: dict[int | None, Servable] = record.serving
            servable = serving.get(version)
            if servable is not None:
                return servable
        raise _unresolved(record, name, version)


def _unresolved(record: ModelRecord | None, name: str, version: int | None) -> ServingError:
    if record is None:
        return UnknownModel(f"Request for unknown model: {shown(name)} is not found")
    blocked = next((known.blocked.reason for known in record.versions.values() if known.blocked is not None), "")
    why = f": {blocked}" if blocked else ""
    if version is None:
        return Unavailable(f"Request for unknown model: '{name}' has no available versions{why}")
    if version not in record.versions:
        return NotFound(f"Request for unknown model: '{name}' version {version} is not found")
    return Unavailable(f"Request for unknown model: '{name}' version {version} is not at ready state{why}")
