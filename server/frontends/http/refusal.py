"""What a client is told that breaks HTTP's grammar or the bounds on it: answered once, then the connection ends."""

from http import HTTPStatus

import orjson


class Refusal(Exception):
    """A message that is not read on."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text

    def answer(self) -> bytes:
        """The whole answer."""
        body = orjson.dumps({"error": self.text})
        return b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (
            self.status.value,
            self.status.phrase.encode(),
            len(body),
            body,
        )
