"""RPCs that require a key before they are run."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import cast

from google.protobuf.message import Message

from stoker.server.core.request import InFlight
from stoker.server.rpc.call import Call, StreamCall
from stoker.server.rpc.method import Kind, LargeMessages, Method, StreamHandler, UnaryHandler, UnarySubmit, ViewSubmit
from stoker.server.rpc.restricted_apis import Category, Restrictions, category_of_method


def restricted(methods: Iterable[Method], restrictions: Restrictions) -> Iterator[Method]:
    """Puts the methods of a restricted category behind a check of their key, and leaves the others as they are.

    Raises:
        LookupError: a method has no category.
    """
    for method in methods:
        category = category_of_method(method.path)
        yield _guarded(method, category, restrictions) if restrictions.restricts(category) else method


def _guarded(method: Method, category: Category, restrictions: Restrictions) -> Method:
    """`method` with a check in each of the ways that a transport may run it: `handle`, `submit` and `large`."""
    method = dataclasses.replace(method, require=functools.partial(restrictions.require, category))
    if method.kind is not Kind.UNARY:
        stream = cast("StreamHandler", method.handle)

        async def handle_stream(call: StreamCall) -> None:
            restrictions.require(category, call.metadata.get)
            await stream(call)

        return dataclasses.replace(method, handle=handle_stream, submit=None, large=None)
    run = cast("UnaryHandler", method.handle)

    async def handle(data: bytes, call: Call) -> bytes | Message:
        restrictions.require(category, call.metadata.get)
        return await run(data, call)

    submit, large = method.submit, method.large
    return dataclasses.replace(
        method,
        handle=handle,
        submit=None if submit is None else _guarded_submit(submit, category, restrictions),
        large=None if large is None else LargeMessages(_guarded_view_submit(large.submit, category, restrictions), large.lead_bytes),
    )


def _guarded_submit(submit: UnarySubmit, category: Category, restrictions: Restrictions) -> UnarySubmit:
    def begin(data: bytes, call: Call, on_result: Callable[[bytes | Exception], None]) -> InFlight:
        restrictions.require(category, call.metadata.get)
        return submit(data, call, on_result)

    return begin


def _guarded_view_submit(submit: ViewSubmit, category: Category, restrictions: Restrictions) -> ViewSubmit:
    def begin(data: memoryview, call: Call, on_result: Callable[[bytes | Exception], None]) -> InFlight:
        restrictions.require(category, call.metadata.get)
        return submit(data, call, on_result)

    return begin
