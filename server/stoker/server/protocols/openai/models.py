"""OpenAI's list of models: those that serve and declare an endpoint."""

from typing import Any, Final

from stoker.backends.api.clock import Clock, SystemClock
from stoker.backends.api.errors import NotFound, ServingError
from stoker.server.core.openai_contract import PARAMETER, Endpoint, endpoints_of
from stoker.server.engine.interface import Engine
from stoker.server.protocols.openai.errors import ModelNotFound

OWNER: Final = "stoker"
PATHS: Final = {
    Endpoint.EMBEDDINGS: "/v1/embeddings",
    Endpoint.COMPLETIONS: "/v1/completions",
    Endpoint.CHAT: "/v1/chat/completions",
}
#: Models that an error names at most.
_NAMED: Final = 10


class OpenAiModels:
    """Finds the models of OpenAI's API. Confined to: the event loop."""

    def __init__(self, engine: Engine, clock: Clock | None = None) -> None:
        """The time of its creation is the time of creation of all models: clients require one."""
        self._engine = engine
        self._created_s = (clock or SystemClock()).wall_ms() // 1000

    def object_of(self, name: str) -> dict[str, Any] | None:
        """OpenAI's object of a model; None: it does not serve, or declares no endpoint."""
        endpoints = self._endpoints(name)
        if not endpoints:
            return None
        return {"id": name, "object": "model", "created": self._created_s, "owned_by": OWNER, "endpoints": sorted(endpoints)}

    def listed(self) -> dict[str, Any]:
        """OpenAI's list of the models."""
        names = sorted({entry.name for entry in self._engine.index(ready_only=True)})
        return {"object": "list", "data": [found for name in names if (found := self.object_of(name)) is not None]}

    def check(self, name: str, endpoint: Endpoint) -> None:
        """Rejects a model that does not serve `endpoint`.

        Raises:
            ModelNotFound: it is unknown, or does not declare the endpoint. Unavailable: it is known, but does not serve.
        """
        try:
            parameters = self._engine.describe(name, None).config.parameters
        except NotFound:
            raise ModelNotFound(f"the model '{name[:128]}' does not exist; {self._serving(endpoint)}") from None
        declared = endpoints_of(parameters)
        if endpoint in declared:
            return
        has = f"it declares {', '.join(sorted(declared))}" if declared else f"its config.pbtxt has no parameter '{PARAMETER}'"
        raise ModelNotFound(f"the model '{name[:128]}' does not serve {PATHS[endpoint]}: {has}; {self._serving(endpoint)}")

    def _endpoints(self, name: str) -> frozenset[Endpoint]:
        try:
            return endpoints_of(self._engine.describe(name, None).config.parameters)
        except ServingError:
            return frozenset()

    def _serving(self, endpoint: Endpoint) -> str:
        names = [each["id"] for each in self.listed()["data"] if endpoint in each["endpoints"]]
        if not names:
            return f"no model serves {PATHS[endpoint]}"
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return f"models for {PATHS[endpoint]}: {', '.join(names[:_NAMED])}{more}"
