"""An app that is loaded when somebody asks for it."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from stoker.server.protocols.exchange import INTERNAL_TEXT, Receive, Scope, Send, error_body, send_response

_log = logging.getLogger(__name__)


class DeferredApp:
    """An ASGI app built at its first request, in a thread: FastAPI takes a third of a second and 18 MiB that a server may never need.

    Requests that come meanwhile wait for it; everything else goes on. Confined to: the event loop, but for `build`.
    """

    def __init__(self, build: Callable[[], Any]) -> None:
        """`build` imports and makes the app; it is called once, in a thread."""
        self._build = build
        self._app: Any = None
        self._building: asyncio.Task[Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            if self._building is None:
                self._building = asyncio.create_task(asyncio.to_thread(self._build))
            # Shielded: one client that leaves does not take the app from those who wait with it.
            try:
                self._app = await asyncio.shield(self._building)
            except Exception:  # noqa: BLE001 - whatever an import raises, the routes that do not need it go on
                _log.exception("the routes behind FastAPI cannot be loaded")
                await send_response(send, 500, error_body(INTERNAL_TEXT), [(b"content-type", b"application/json")])
                return
        await self._app(scope, receive, send)
