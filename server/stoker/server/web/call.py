"""An HTTP request as the `Call` that handlers know."""

from collections.abc import Iterable, Mapping


class HttpCall:
    """A call carried by HTTP. A client that goes away cancels the task, so nothing needs to be asked here."""

    __slots__ = ("_headers", "_metadata")

    def __init__(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._headers = headers
        self._metadata: dict[str, str] | None = None

    @property
    def metadata(self) -> Mapping[str, str]:
        if self._metadata is None:
            self._metadata = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._headers}
        return self._metadata

    @property
    def deadline_ns(self) -> int | None:
        return None

    def cancelled(self) -> bool:
        return False
