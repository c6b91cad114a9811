"""What is to be written to the peer, and the connection's receive window, which is given back through it."""

from stoker.server.net.http2 import frames
from stoker.server.net.http2.error_codes import ErrorCode
from stoker.server.net.http2.faults import ConnectionFault
from stoker.server.net.http2.frames import DEFAULT_WINDOW_BYTES


class Output:
    """Pieces of frames in order. Confined to: one connection.

    Attributes:
        pieces: What `take` will give.
        size: Bytes of it, as far as data is concerned; frames without data are counted roughly.
    """

    __slots__ = ("_control", "_most_control", "pieces", "size")

    def __init__(self, most_control: int) -> None:
        """`most_control`: frames answering the peer's own that may wait."""
        self.pieces: list[bytes | memoryview] = []
        self.size = 0
        self._control = 0
        self._most_control = most_control

    def control(self, frame: bytes) -> None:
        """Adds a frame that is not part of an answer."""
        self.pieces.append(frame)
        self.size += len(frame)
        self._control += 1

    def reply(self, frame: bytes) -> None:
        """Adds a frame that the peer has provoked.

        Raises:
            ConnectionFault: the peer provokes them and does not read them.
        """
        self.control(frame)
        if self._control > self._most_control:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"{self._control} control frames wait to be read")

    def take(self) -> list[bytes | memoryview]:
        pieces = self.pieces
        self.pieces = []
        self.size = 0
        self._control = 0
        return pieces


class Inflow:
    """The connection's receive window: what the peer may still send, and what is owed to it. Confined to: one connection.

    Attributes:
        window: Bytes the peer may still send on all streams together.
    """

    __slots__ = ("_granted", "_half", "_output", "_owed", "window")

    def __init__(self, output: Output, window_bytes: int) -> None:
        self._output = output
        self._half = max(1, window_bytes // 2)
        self._owed = 0
        self._granted = window_bytes
        self.window = window_bytes
        if window_bytes > DEFAULT_WINDOW_BYTES:
            output.control(frames.window_update(0, window_bytes - DEFAULT_WINDOW_BYTES))

    def refund(self, count: int) -> None:
        """Owes the peer `count` bytes more; they are paid when they make half the window, so that few frames do it."""
        self._owed += count
        if self._owed >= self._half:
            self._output.control(frames.window_update(0, self._owed))
            self.window += self._owed
            self._granted += self._owed
            self._owed = 0

    @property
    def received_bytes(self) -> int:
        """DATA received so far, padding included."""
        return self._granted - self.window
