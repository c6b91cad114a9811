"""The heads of calls, kept by the fields they were read from: a client begins nearly all its calls with the same few."""

from typing import Final

from stoker.server.net.http2.events import Headers
from stoker.server.rpc.method import MethodTable
from stoker.server.rpc.request_head import RequestHead, read_head

_KEPT: Final = 128
#: What the fields of those may take together: a client may well send other metadata, up to the limit, with each call.
_KEPT_BYTES: Final = 64 * 1024


class HeadCache:
    """Confined to: one connection."""

    __slots__ = ("_heads", "_methods", "_size_bytes")

    def __init__(self, methods: MethodTable) -> None:
        self._methods = methods
        # By the id of the fields: the core gives the same object for fields it has seen before. To be kept here keeps an id from being
        # used again.
        self._heads: dict[int, tuple[Headers, RequestHead]] = {}
        self._size_bytes = 0

    def read(self, headers: Headers) -> RequestHead:
        """The head that `headers` make.

        Raises:
            NotGrpc, CallFault: see `read_head`.
        """
        known = self._heads.get(id(headers))
        if known is not None:
            return known[1]
        head = read_head(headers, self._methods)
        size_bytes = sum(len(name) + len(value) for name, value in headers)
        if len(self._heads) >= _KEPT or self._size_bytes + size_bytes > _KEPT_BYTES:
            self._heads.clear()
            self._size_bytes = 0
        self._size_bytes += size_bytes
        self._heads[id(headers)] = (headers, head)
        return head
