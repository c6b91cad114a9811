"""RPCs that require a key before they are run."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import Any

from stoker.server.core.completion import Completion
from stoker.server.rpc.call import Call, StreamCall
from stoker.server.rpc.method import Method, Result
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
    """`method` with a check of the key in front of its body."""
    require = functools.partial(restrictions.require, category)
    start, handle = method.start, method.handle
    if start is not None:

        def start_checked(data: Any, call: Call) -> Completion[Result]:
            require(call.metadata.get)
            return start(data, call)

        return dataclasses.replace(method, start=start_checked, require=require)

    async def handle_checked(call: StreamCall) -> None:
        require(call.metadata.get)
        assert handle is not None
        await handle(call)

    return dataclasses.replace(method, handle=handle_checked, require=require)
