"""Where the heads of one connection begin and end among its bytes."""

from stoker.server.net.http1.head import BLANK_LINE, HeadParser
from stoker.server.net.http1.port import HttpPort, KnownHead


class HeadReader:
    """Reads one head after the other; most come whole, and were seen before. Confined to: the event loop."""

    __slots__ = ("_parser", "_port", "_tail")

    def __init__(self, port: HttpPort) -> None:
        """`port` knows the heads that were seen before."""
        self._port = port
        self._parser: HeadParser | None = None
        self._tail = b""

    def take(self, data: bytes, at: int) -> tuple[KnownHead | None, int]:
        """Reads `data` from `at`, but not beyond the next head; that head, once it is complete, and where reading stopped.

        Raises:
            Refusal: it is not one to go on with.
        """
        parser = self._parser
        if parser is None:
            if data[at] in b"\r\n":
                # Blank lines before a message are passed over.
                at = len(data) - len(data[at:].lstrip(b"\r\n"))
                if at == len(data):
                    return None, at
            end = data.find(BLANK_LINE, at)
            if end >= 0:
                end += len(BLANK_LINE)
                return self._port.find(data[at:end]), end
            parser = self._parser = HeadParser(self._port.limits)
        # The blank line may come in pieces.
        joined = self._tail + data[at:]
        end = joined.find(BLANK_LINE)
        if end < 0:
            parser.feed(data[at:])
            self._tail = joined[-len(BLANK_LINE) + 1 :]
            return None, len(data)
        begin, at = at, at + end + len(BLANK_LINE) - len(self._tail)
        parser.feed(data[begin:at])
        self._parser, self._tail = None, b""
        return self._port.known(parser), at
