"""GET /ui/api/events: the samples of the last 15 minutes, then each new one, as server-sent events."""

from typing import Final

from stoker.backends.api.errors import Overloaded
from stoker.server.protocols.exchange import IS_HEAD, Receive, Scope, Send
from stoker.server.web.console.feed import Feed

#: Clients that may receive events at the same time.
MOST_CLIENTS: Final = 16
# Events are to be shown as they come: a proxy or cache must not hold them back.
_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
)


class EventStreams:
    """Serves the events. Confined to: the event loop.

    Attributes:
        clients: Clients that receive events now.
    """

    def __init__(self, feed: Feed) -> None:
        self.clients = 0
        self._feed = feed

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends events until the client disconnects or the server stops. A client that reads slowly gets each event later, none twice.

        Raises:
            Overloaded: too many clients; nothing was sent.
        """
        if self.clients >= MOST_CLIENTS:
            raise Overloaded(f"{MOST_CLIENTS} clients already receive the events of the console: close one of its pages")
        # The rest of the request: behind it, the HTTP server notices that the client disconnects.
        await receive()
        self.clients += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            if not scope.get(IS_HEAD):
                await self._send_events(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self.clients -= 1

    async def _send_events(self, send: Send) -> None:
        feed, history = self._feed, self._feed.history
        listing = b""
        number = 0
        while not history.is_closed:
            if (present := feed.listing()) is not listing:
                listing = present
                await send({"type": "http.response.body", "body": listing, "more_body": True})
            for sample in history.since(number):
                number = sample.number
                await send({"type": "http.response.body", "body": feed.sample(sample), "more_body": True})
            if number >= history.last_number:
                await history.wait_next()
