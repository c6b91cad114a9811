"""What a client is told that breaks HTTP's grammar or the bounds on it: answered once, then the connection ends."""

from http import HTTPStatus

import orjson


class Refusal(Exception):
    """A message that is not read on."""

    def __init__(self, status: HTTPStatus, text: str, *, retry_after_s: int | None = None) -> None:
        """`retry_after_s`: when trying again makes sense; None: nothing is said of it."""
        super().__init__(text)
        self.status = status
        self.text = text
        self.retry_after_s = retry_after_s

    def to_bytes(self) -> bytes:
        """The whole answer."""
        body = orjson.dumps({"error": self.text})
        retry = b"" if self.retry_after_s is None else b"retry-after: %d\r\n" % self.retry_after_s
        return b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\nconnection: close\r\n\r\n%b" % (
            self.status.value,
            self.status.phrase.encode(),
            retry,
            len(body),
            body,
        )
