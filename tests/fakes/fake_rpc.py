"""Calls without a transport, for methods that are tested by themselves."""

from collections.abc import Mapping

from google.protobuf.message import Message


class FakeCall:
    """A `Call` with the test's metadata; it records its trailers."""

    def __init__(self, metadata: Mapping[str, str] | None = None, deadline_ns: int | None = None) -> None:
        self.metadata = dict(metadata or {})
        self.binary_metadata: dict[str, bytes] = {}
        self.deadline_ns = deadline_ns
        self.trailers: list[tuple[str, str | bytes]] = []

    def cancelled(self) -> bool:
        return False

    def add_trailer(self, name: str, value: str | bytes) -> None:
        self.trailers.append((name, value))


class FakeStreamCall(FakeCall):
    """A `StreamCall` that delivers `messages` and records the serialised `sent` ones."""

    def __init__(self, *messages: bytes, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(metadata)
        self._messages = list(messages)
        self.sent: list[bytes] = []

    async def receive(self) -> bytes | None:
        return self._messages.pop(0) if self._messages else None

    async def send(self, message: bytes | Message) -> None:
        self.sent.append(message if isinstance(message, bytes) else message.SerializeToString())
