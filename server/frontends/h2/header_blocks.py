"""Header blocks: HPACK (RFC 7541) by the `hpack` library, with what repeats remembered.

A client sends the same few blocks again and again once its fields are in the dynamic table: one byte a field. What such a block means
depends on its bytes and on the table, and on nothing else. So a decoded block is kept if decoding it has left the table alone, and all are
forgotten when the table changes. Our own blocks never touch the dynamic table: one that was made once can be sent on any connection.
"""

from collections.abc import Iterable
from typing import Final

from hpack.exceptions import HPACKError, OversizedHeaderListError
from hpack.hpack import Decoder, encode_integer
from hpack.table import HeaderTable

from server.frontends.h2.error_codes import ErrorCode
from server.frontends.h2.events import Headers
from server.frontends.h2.faults import ConnectionFault
from server.frontends.h2.header_rules import MalformedError, check_request
from server.frontends.h2.limits import H2Limits

#: Blocks kept for one connection, and how long they may be: a client repeats a handful, and those are short.
_KEPT_BLOCKS: Final = 64
_KEPT_BLOCK_BYTES: Final = 1024
#: RFC 7541, section 4.1.
_ENTRY_OVERHEAD_BYTES: Final = 32
#: "Dynamic table size update" to zero (RFC 7541, section 6.3): what our encoder says if the peer wants a smaller table than the default.
NO_TABLE: Final = b"\x20"


def encode_block(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A header block that needs no dynamic table: indices of the static one, literals for the rest (RFC 7541, section 6.2.2).

    Args:
        fields: (name, value), names in lower case, pseudo-header fields first.
    """
    block = bytearray()
    for name, value in fields:
        index, values = HeaderTable.STATIC_TABLE_MAPPING.get(name, (0, {}))
        exact = values.get(value)
        if exact is not None:
            block.append(0x80 | exact)
            continue
        block += encode_integer(index, 4)
        if not index:
            block += encode_integer(len(name), 7)
            block += name
        block += encode_integer(len(value), 7)
        block += value
    return bytes(block)


class RequestBlock:
    """What a request's header block says.

    Attributes:
        headers: The fields.
        size_bytes: Their size as RFC 9113 section 10.5.1 counts it.
        content_length: As declared; None: not.
        malformed: Which rule is broken; None: none.
    """

    __slots__ = ("content_length", "headers", "malformed", "size_bytes")

    def __init__(self, headers: Headers) -> None:
        self.headers = headers
        self.size_bytes = sum(len(name) + len(value) for name, value in headers) + _ENTRY_OVERHEAD_BYTES * len(headers)
        self.content_length: int | None = None
        self.malformed: str | None = None
        try:
            self.content_length = check_request(headers)
        except MalformedError as error:
            self.malformed = str(error)


class _WatchedTable(HeaderTable):
    """The dynamic table, and the blocks that can be read without decoding them while it stays as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.version = 0
        self.blocks: dict[bytes, RequestBlock] = {}

    def add(self, name: bytes, value: bytes) -> None:
        self._changed()
        super().add(name, value)

    @property
    def maxsize(self) -> int:
        return self._maxsize

    @maxsize.setter
    def maxsize(self, newmax: int) -> None:
        self._changed()
        HeaderTable.maxsize.fset(self, newmax)  # type: ignore[attr-defined]

    def _changed(self) -> None:
        self.version += 1
        self.blocks.clear()


class HeaderDecoder:
    """The peer's compression context. Every block must pass through it in order, wanted or not. Confined to: one connection."""

    __slots__ = ("_blocks", "_decoder", "_table")

    def __init__(self, limits: H2Limits) -> None:
        self._decoder = Decoder(max_header_list_size=max(limits.header_block_bytes, limits.header_list_bytes))
        self._table = _WatchedTable()
        self._blocks = self._table.blocks
        self._decoder.header_table = self._table

    def limit_table(self, table_bytes: int) -> None:
        """Bounds the table, once the peer knows the bound: its next block must respect it."""
        self._decoder.max_allowed_table_size = table_bytes
        # A block that was fine may now lack the update that makes the table smaller.
        self._blocks.clear()

    def request(self, block: bytes) -> RequestBlock:
        """Decodes a request's block.

        Raises:
            ConnectionFault: the block cannot be decoded, or decodes to more than `header_block_bytes`.
        """
        known = self._blocks.get(block)
        if known is not None:
            return known
        table = self._table
        version = table.version
        request = RequestBlock(self.fields(block))
        if table.version == version and len(block) <= _KEPT_BLOCK_BYTES:
            if len(self._blocks) >= _KEPT_BLOCKS:
                self._blocks.clear()
            self._blocks[block] = request
        return request

    def fields(self, block: bytes) -> Headers:
        """Decodes a block that is no request's: trailers, or one whose stream is gone.

        Raises:
            ConnectionFault: as `request`.
        """
        try:
            return tuple((name, value) for name, value in self._decoder.decode(block, raw=True))
        except OversizedHeaderListError as error:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header list decodes to more than this server takes") from error
        except HPACKError as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, f"invalid header block: {error}"[:200]) from error
