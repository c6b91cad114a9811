"""The requests of every protocol with predictions: the inputs of a model, and one inference.

`Dialect` is KServe's whole vocabulary; this is the part that TensorFlow Serving and Adlik have words for too, so that one caller speaks
any of them: stoker_client's own clients of those protocols, and load generators that build their requests once.
"""

from typing import Protocol

from stoker_client.dialect import Call, Dialect, Facts
from stoker_client.inference import InferRequest, InferResult


class PredictDialect(Protocol):
    """Both questions in the words of one protocol. Stateless, and so thread-safe."""

    def metadata(self, model: str, version: str) -> tuple[Call[Facts], ...]:
        """Ways to ask what a model takes and gives, to be tried in turn while the response is `InvalidResponse` or `Unsupported`.

        The response has the fields of KServe's metadata: `name`, `versions`, `platform`, `inputs` and `outputs` with `name`, `datatype`,
        `shape` (batch dimension included, -1 where it is open).
        """

    def infer(self, request: InferRequest, facts: Facts) -> Call[InferResult]:
        """One inference.

        Args:
            request: The request. Ids and parameters are sent if the protocol has fields for them.
            facts: The model's metadata; protocols whose responses do not name outputs and types need it.
        """


class KServePredict:
    """KServe's protocol, seen as a `PredictDialect`."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def metadata(self, model: str, version: str) -> tuple[Call[Facts], ...]:
        """See `PredictDialect`."""
        return (self._dialect.model_metadata(model, version),)

    def infer(self, request: InferRequest, facts: Facts) -> Call[InferResult]:
        """See `PredictDialect`."""
        return self._dialect.infer(request)
