"""Keeps the `SignatureCheck` of every version that is asked for, so that a request does not build it anew."""

from stoker.backends.api.errors import InvalidRequest
from stoker.server.codecs.validation import SignatureCheck
from stoker.server.core.limits import Limits
from stoker.server.core.servable import Servable
from stoker.server.engine.interface import Engine

_KEPT = 1024


class SignatureChecks:
    """Checks by (model, version asked for). Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine = engine
        self._limits = limits
        self._kept: dict[tuple[str, int | None], SignatureCheck] = {}

    def find(self, name: str, version: int | None) -> tuple[Servable, SignatureCheck]:
        """The version that a request for (`name`, `version`) reaches now, and the check of its signature.

        Raises:
            InvalidRequest: `name` is too long. And as `Engine.describe`.
        """
        kept = self._kept.get((name, version))
        if kept is None and len(name) > self._limits.name_length:
            raise InvalidRequest(f"model name has {len(name)} characters, more than the {self._limits.name_length} allowed")
        servable = self._engine.resolve(name, version)
        signature = servable.signature
        if kept is None or kept.signature is not signature:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            kept = self._kept[name, version] = SignatureCheck(name, signature, self._limits)
        return servable, kept
