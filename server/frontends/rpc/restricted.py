"""RPCs that want a key before they are run."""

from collections.abc import Iterable, Iterator
from typing import cast

from google.protobuf.message import Message

from server.frontends.restricted import Category, Restrictions, category_of_method
from server.frontends.rpc.call import Call, StreamCall
from server.frontends.rpc.method import Kind, Method, StreamHandler, UnaryHandler


def restricted(methods: Iterable[Method], restrictions: Restrictions) -> Iterator[Method]:
    """`methods`, those of a restricted category behind a check of their key. The others are as they were.

    Raises:
        LookupError: one has no category.
    """
    for method in methods:
        category = category_of_method(method.path)
        yield _guarded(method, category, restrictions) if restrictions.restricts(category) else method


def _guarded(method: Method, category: Category, restrictions: Restrictions) -> Method:
    if method.kind is Kind.UNARY:
        run = cast("UnaryHandler", method.handle)

        async def handle(data: bytes, call: Call) -> bytes | Message:
            restrictions.require(category, call.metadata.get)
            return await run(data, call)

        return _with_handler(method, handle)
    stream = cast("StreamHandler", method.handle)

    async def handle_stream(call: StreamCall) -> None:
        restrictions.require(category, call.metadata.get)
        await stream(call)

    return _with_handler(method, handle_stream)


def _with_handler(method: Method, handle: UnaryHandler | StreamHandler) -> Method:
    # Made anew: no other way into the method that a `Method` may offer comes along.
    return Method(
        path=method.path, kind=method.kind, handle=handle, status=method.status, most_bytes=method.most_bytes, failed=method.failed
    )
