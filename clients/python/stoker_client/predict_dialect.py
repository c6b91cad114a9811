"""The requests of every protocol with predictions: the inputs of a model, and one inference.

`Dialect` has all requests of KServe. This is the part that TensorFlow Serving and Adlik have too, so that one caller can use any of them:
stoker_client's own clients of those protocols, and load generators that build their requests once.
"""

from typing import Protocol

from stoker_client.dialect import Call, Dialect, Facts
from stoker_client.inference import InferRequest, InferResult


class PredictDialect(Protocol):
    """Metadata and inference in the form of one protocol. Stateless, and so thread-safe."""

    def metadata(self, model: str, version: str) -> tuple[Call[Facts], ...]:
        """The calls that read a model's metadata, to be tried in order while the response is `InvalidResponse` or `Unsupported`.

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
    """KServe's protocol as a `PredictDialect`."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def metadata(self, model: str, version: str) -> tuple[Call[Facts], ...]:
        """See `PredictDialect`."""
        return (self._dialect.model_metadata(model, version),)

    def infer(self, request: InferRequest, facts: Facts) -> Call[InferResult]:
        """See `PredictDialect`."""
        return self._dialect.infer(request)
