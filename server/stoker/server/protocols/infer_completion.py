"""Inference calls over gRPC without a task: from the decoded request to the serialised response."""

from collections.abc import Awaitable
from typing import Any

from stoker.backends.api.errors import ServingError
from stoker.server.codecs.memo import BoundedCache
from stoker.server.codecs.tensors import Raw, Serialised
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.completion import Completion, TaskCompletion
from stoker.server.core.request import EngineResult, InferResponse, InFlight
from stoker.server.engine.interface import Engine
from stoker.server.protocols.decoded_call import DecodedCall
from stoker.server.rpc.method import Call


class InferCompletion(Completion[Serialised]):
    """One request in progress. INVARIANT: its bytes are released once, when it completes.

    Attributes:
        running: The engine's completion, or the task that encodes the response.
    """

    __slots__ = ("running",)

    def __init__(self) -> None:
        # Not by `super`, which would be another call for every request.
        self._callback = None
        self._result = None
        self.is_over = False
        self.running: InFlight | None = None

    # What a dialect implements.

    def _encode(self, response: InferResponse) -> Serialised | None:
        """The serialised response; None: that needs a thread, see `_encode_slowly`."""
        raise NotImplementedError

    def _encode_slowly(self, response: InferResponse) -> Awaitable[Serialised]:
        """As `_encode`, in threads."""
        raise NotImplementedError

    def _reported(self, error: Exception) -> Exception:
        """The engine's `error` in the words of the dialect."""
        return error

    def _note_unencoded(self, error: Exception) -> None:
        """Notes that the response cannot be encoded."""

    def _release(self) -> None:
        """Releases the bytes of the request."""
        raise NotImplementedError

    def responded(self, outcome: EngineResult) -> None:
        """Receives the engine's result."""
        if isinstance(outcome, Exception):
            self.end(self._reported(outcome))
            return
        try:
            encoded = self._encode(outcome)
        except Exception as error:  # noqa: BLE001 - a defect, or values that have no such form: the call's result
            self._note_unencoded(error)
            self.end(error)
            return
        if encoded is None:
            encoding = TaskCompletion(lambda: self._encode_slowly(outcome))
            self.running = encoding
            encoding.then(self.end)
        else:
            self.end(encoded)

    def end(self, result: Serialised | Exception) -> None:
        """Completes the call and releases its bytes."""
        if self.is_over:
            return
        self.is_over = True
        # `running` refers to this completion. Without this reference cycle, tensors and trace are freed with the completion.
        self.running = None
        # Before the response is counted: request and response are not counted together.
        self._release()
        # As `complete`, without the call.
        callback, self._callback = self._callback, None
        if callback is None:
            self._result = result
        else:
            callback(result)

    def _withdraw(self) -> None:
        running, self.running = self.running, None
        if running is not None:
            running.cancel()
        if isinstance(running, TaskCompletion):
            # A thread still reads the tensors: their memory is released when it has ended.
            running.when_ended(self._release)
        else:
            self._release()


class _DecodedCompletion(InferCompletion):
    """A `DecodedCall` in progress.

    Attributes:
        reservation: The bytes of the request.
        decoded: None until the request is decoded.
    """

    __slots__ = ("decoded", "reservation")

    def __init__(self, engine: Engine) -> None:
        self._callback = None
        self._result = None
        self.is_over = False
        self.running = None
        self.reservation = Reservation(engine.budget)
        self.decoded: DecodedCall | None = None

    def _encode(self, response: InferResponse) -> Serialised | None:
        assert self.decoded is not None
        return self.decoded.encode(response)

    def _encode_slowly(self, response: InferResponse) -> Awaitable[Serialised]:
        assert self.decoded is not None
        return self.decoded.encode_slowly(response)

    def _reported(self, error: Exception) -> Exception:
        if self.decoded is not None and isinstance(error, ServingError):
            return self.decoded.reported(error)
        return error

    def _release(self) -> None:
        self.reservation.release()


class MessageInference:
    """A unary method whose messages become one inference request each. Confined to: the event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: The offset of the first tensor in large messages, by message size.
        self._leads: BoundedCache[int, int] = BoundedCache()

    def lead_bytes(self, size_bytes: int) -> int:
        """Where the first tensor began in the last large message of `size_bytes` bytes; 0 if unknown."""
        return self._leads.entries.get(size_bytes) or 0

    def _note_lead(self, data: Raw, lead_bytes: int) -> None:
        """Notes where the first tensor of the large message `data` begins; small ones have no buffer of their own."""
        if type(data) is not bytes:
            self._leads.put(len(data), lead_bytes)

    # What a dialect implements.

    def _decode(self, data: Raw, deadline_ns: int | None, reservation: Reservation) -> DecodedCall | None:
        """Decodes the serialised message `data`; None: that needs a thread, see `_decode_slowly`.

        Raises:
            ServingError: the request violates the protocol, the limits or the model's signature, or no READY model matches.
        """
        raise NotImplementedError

    async def _decode_slowly(self, data: Raw, deadline_ns: int | None, reservation: Reservation) -> DecodedCall:
        """As `_decode`, in threads."""
        raise NotImplementedError

    def start(self, data: Raw, call: Call) -> Completion[Any]:
        """Runs the serialised message `data` of `call`; completes with the serialised response, or with a `ServingError`.

        Tensors are views of `data` if their form permits.
        """
        deadline_ns = call.deadline_ns
        completion = _DecodedCompletion(self._engine)
        try:
            decoded = self._decode(data, deadline_ns, completion.reservation)
            if decoded is not None:
                completion.decoded = decoded
                completion.running = self._engine.submit(decoded.request, completion.responded)
                return completion
        except Exception as error:  # noqa: BLE001 - a rejection, or a defect: either is the call's result
            completion.end(completion._reported(error))
            return completion
        completion.reservation.release()
        return TaskCompletion(lambda: self._respond_slowly(data, deadline_ns), is_inline=True)

    async def _respond_slowly(self, data: Raw, deadline_ns: int | None) -> Serialised:
        with Reservation(self._engine.budget) as reservation:
            decoded = await self._decode_slowly(data, deadline_ns, reservation)
            return await decoded.outcome(self._engine)
