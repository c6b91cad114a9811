"""`Resolver`: finds the version that a request runs on."""

from collections.abc import Callable

from stoker.backends.api.errors import InvalidRequest, NotFound, ServingError, Unavailable, UnknownModel
from stoker.server.lifecycle.servable import Servable
from stoker.server.lifecycle.settings import shown
from stoker.server.lifecycle.table import ModelRecord


class Resolver:
    """Confined to: the event loop."""

    __slots__ = ("_ambiguity", "_table")

    def __init__(self, table: dict[str, ModelRecord], ambiguity: Callable[[str], str] | None = None) -> None:
        """`table`: the records by name, which others change. `ambiguity`: why the table lacks a name, see `ModelNames.ambiguity`."""
        self._table = table
        self._ambiguity = ambiguity

    def resolve(self, name: str, version: int | None) -> Servable:
        """The servable for a request to (`name`, `version`); `version` None: the highest READY one.

        Raises:
            UnknownModel: no such model. InvalidRequest: several models have the name. NotFound: no such version.
            Unavailable: known, but not READY.
        """
        record = self._table.get(name)
        if record is not None:
            serving: dict[int | None, Servable] = record.serving
            servable = serving.get(version)
            if servable is not None:
                return servable
        elif self._ambiguity is not None and (reason := self._ambiguity(name)):
            raise InvalidRequest(reason)
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
