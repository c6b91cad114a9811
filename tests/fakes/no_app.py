"""An ASGI application for connections whose requests must not reach one."""

from stoker.server.net.http1.asgi import Receive, Scope, Send


async def no_app(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError(f"{scope['path']} was sent to the application")
