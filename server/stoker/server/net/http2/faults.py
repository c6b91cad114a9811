"""What ends a stream or a connection: rules a peer broke, and rules the application broke."""

from stoker.server.net.http2.error_codes import ErrorCode


class ConnectionFault(Exception):
    """The peer broke a rule in a way that leaves the connection unusable (RFC 9113, section 5.4.1). Never leaves the room."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class OversizedBlock(ConnectionFault):
    """A header block holds more than it may. It was not decoded to its end, so that no later one can be decoded."""

    def __init__(self, text: str) -> None:
        super().__init__(ErrorCode.ENHANCE_YOUR_CALM, text)


class StreamFault(Exception):
    """The peer broke a rule that concerns one stream only (RFC 9113, section 5.4.2). Never leaves the room."""

    def __init__(self, stream_id: int, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.stream_id = stream_id
        self.code = code
        self.text = text


class MisuseError(Exception):
    """The application asked for what HTTP/2 does not allow, such as data behind its own end of a stream: a bug on this side."""
