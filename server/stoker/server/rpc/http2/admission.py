"""Which requests of a connection become calls, and what those are told that do not."""

from typing import TYPE_CHECKING

from stoker.backends.api.errors import ServingError
from stoker.server.net.http2.events import Headers
from stoker.server.rpc.http2.answer_blocks import plain_block, refusal_block
from stoker.server.rpc.http2.head_cache import HeadCache
from stoker.server.rpc.http2.refusals import RESERVED_SLOT, TOO_MANY_CALLS, TOO_MUCH_UNREAD
from stoker.server.rpc.http2.unread_answers import UnreadAnswers
from stoker.server.rpc.refusal import CallFault, refusal_of
from stoker.server.rpc.request_head import NotGrpc, RequestHead
from stoker.server.rpc.restricted_apis import is_reserved_method

if TYPE_CHECKING:
    from stoker.server.rpc.http2.protocol import GrpcProtocol


class Admission:
    """Confined to: one connection, on the event loop."""

    __slots__ = ("_connection", "_front", "_heads", "_unread")

    def __init__(self, connection: "GrpcProtocol", unread: UnreadAnswers) -> None:
        """`unread` is what the connection's peer has not taken yet."""
        self._connection = connection
        self._front = connection.front
        self._heads = HeadCache(connection.front.methods)
        self._unread = unread

    def head_of(self, headers: Headers) -> RequestHead | bytes:
        """The head of a call that may begin; else the header block to refuse it by."""
        front = self._front
        try:
            if front.calls >= front.limits.grpc_concurrent_rpcs:
                raise CallFault(TOO_MANY_CALLS)
            if self._unread.size_bytes > front.limits.grpc_unread_bytes:
                raise CallFault(TOO_MUCH_UNREAD)
            head = self._heads.read(headers)
            if self._connection.is_reserved and not is_reserved_method(head.method.path):
                raise CallFault(RESERVED_SLOT)
            if head.method.require is not None:
                try:
                    head.method.require(head.metadata.get)
                except ServingError as error:
                    # Before its message: clients without a key hold nothing of the budget.
                    raise CallFault(refusal_of(error, head.method)) from None
            return head
        except CallFault as error:
            return refusal_block(error.refusal, is_first=True)
        except NotGrpc as error:
            return plain_block(error.status)
