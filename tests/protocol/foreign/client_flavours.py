"""One interface to all four flavours of tritonclient. Runs in the foreign clients' environment: imports nothing of this project."""

import asyncio
import importlib
import inspect


class Flavour:
    """A client of `http`, `grpc`, `http.aio` or `grpc.aio`; asynchronous clients run in an event loop here."""

    def __init__(self, name, address):
        self.name = name
        self.is_http = name.startswith("http")
        self.module = importlib.import_module(f"tritonclient.{name}")
        self._loop = asyncio.new_event_loop()
        self._client = self._run(self._open(address)) if name.endswith("aio") else self.module.InferenceServerClient(address)

    async def _open(self, address):
        return self.module.InferenceServerClient(address)

    def _run(self, work):
        return self._loop.run_until_complete(work)

    def __call__(self, method, *args, **options):
        """Calls `method`; responses of settings and statuses are JSON."""
        if not self.is_http and method.startswith(("get_", "update_")):
            options["as_json"] = True
        result = getattr(self._client, method)(*args, **options)
        return self._run(result) if inspect.isawaitable(result) else result

    def close(self):
        result = self._client.close()
        if inspect.isawaitable(result):
            self._run(result)
        self._loop.close()
