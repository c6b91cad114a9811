"""Answers that are given, but that the client does not take: they wait for its windows, and the budget of bytes in flight counts them."""

from server.engine.interface import Engine


class UnreadAnswers:
    """Confined to: one connection.

    Attributes:
        size_bytes: All of them together.
        unary: How many are answers to unary calls, which clients take as they come.
    """

    __slots__ = ("_engine", "_sizes", "_unary", "size_bytes")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sizes: dict[int, int] = {}
        self._unary: set[int] = set()
        self.size_bytes = 0

    def streams(self) -> list[int]:
        """Whose answers wait."""
        return list(self._sizes)

    @property
    def unary(self) -> int:
        return len(self._unary)

    def keep(self, stream_id: int, size_bytes: int, *, is_unary: bool) -> bool:
        """Takes room for what waits on the stream; False: there is none."""
        if not self._engine.reserve(size_bytes):
            return False
        self._sizes[stream_id] = size_bytes
        self.size_bytes += size_bytes
        if is_unary:
            self._unary.add(stream_id)
        return True

    def forget(self, stream_id: int) -> None:
        """The answer is out, or nobody wants it any more."""
        size_bytes = self._sizes.pop(stream_id, 0)
        if size_bytes:
            self.size_bytes -= size_bytes
            self._engine.release(size_bytes)
            self._unary.discard(stream_id)
