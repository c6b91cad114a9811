"""Which requests of a connection become calls, and what those are told that do not."""

from typing import TYPE_CHECKING

from stoker.backends.api.errors import ServingError
from stoker.server.net.http2.events import Headers
from stoker.server.rpc.http2.head_cache import HeadCache
from stoker.server.rpc.http2.refusals import RESERVED_SLOT, TOO_MANY_CALLS, TOO_MUCH_UNFLUSHED
from stoker.server.rpc.http2.response_blocks import plain_block, refusal_block
from stoker.server.rpc.http2.unflushed_responses import UnflushedResponses
from stoker.server.rpc.refusal import CallFault, rejection_of
from stoker.server.rpc.request_head import NotGrpc, RequestHead
from stoker.server.rpc.restricted_apis import is_reserved_method

if TYPE_CHECKING:
    from stoker.server.rpc.http2.protocol import GrpcProtocol


class Admission:
    """Confined to: one connection, on the event loop."""

    __slots__ = ("_connection", "_front", "_heads", "_unflushed")

    def __init__(self, connection: "GrpcProtocol", unflushed: UnflushedResponses) -> None:
        """`unflushed` is what the connection's peer has not taken yet."""
        self._connection = connection
        self._front = connection.context
        self._heads = HeadCache(connection.context.methods)
        self._unflushed = unflushed

    def head_of(self, headers: Headers) -> RequestHead | bytes:
        """The head of a call that may begin; else the header block to refuse it by."""
        context = self._front
        try:
            if context.calls >= context.limits.grpc_concurrent_rpcs:
                raise CallFault(TOO_MANY_CALLS)
            if self._unflushed.size_bytes > context.limits.grpc_unflushed_bytes:
                raise CallFault(TOO_MUCH_UNFLUSHED)
            head = self._heads.read(headers)
            if self._connection.is_reserved and not is_reserved_method(head.method.path):
                raise CallFault(RESERVED_SLOT)
            if head.method.require is not None:
                try:
                    head.method.require(head.metadata.get)
                except ServingError as error:
                    # Before its message: clients without a key hold nothing of the budget.
                    raise CallFault(rejection_of(error, head.method)) from None
            return head
        except CallFault as error:
            return refusal_block(error.refusal, is_first=True)
        except NotGrpc as error:
            return plain_block(error.status)
