"""`DecodedCall`: what the engine runs for a request of any protocol, and how its response is encoded."""

from stoker.backends.api.errors import ServingError
from stoker.server.codecs.tensors import Serialised
from stoker.server.core.request import InferRequest, InferResponse
from stoker.server.engine.interface import Engine


class DecodedCall:
    """A decoded inference request.

    Attributes:
        request: The validated request.
    """

    __slots__ = ("request",)

    def __init__(self, request: InferRequest) -> None:
        self.request = request

    def encode(self, response: InferResponse) -> Serialised | None:
        """The encoded response; None: that needs a thread, see `encode_slowly`.

        Raises:
            ServingError: the response has no form in this protocol, or exceeds a limit.
        """
        raise NotImplementedError

    async def encode_slowly(self, response: InferResponse) -> Serialised:
        """As `encode`, in a thread."""
        raise NotImplementedError

    def reported(self, error: ServingError) -> ServingError:
        """The engine's `error` in the words of the protocol."""
        return error

    async def outcome(self, engine: Engine) -> Serialised:
        """Runs the request; returns the encoded response.

        Raises:
            ServingError: as `Engine.infer` and `encode`.
        """
        failure: ServingError | None = None
        try:
            response = await engine.infer(self.request)
        except ServingError as error:
            failure = self.reported(error)
        if failure is not None:
            raise failure
        encoded = self.encode(response)
        return await self.encode_slowly(response) if encoded is None else encoded
