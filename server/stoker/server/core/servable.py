"""`Servable`: one READY version as the protocols see it, and work in a thread that keeps it loaded."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import ParamSpec, Protocol, TypeVar

from stoker.backends.api.model import ModelSignature
from stoker.server.core.tasks import run_off_loop

P = ParamSpec("P")
T = TypeVar("T")


class Servable(Protocol):
    """One loaded version. A request resolves it once, is validated against its signature, and runs on it.

    Without more, the reference is good until the next `await`: a request that is submitted in the same turn of the event loop reaches this
    version. A request that waits in between borrows it meanwhile, so that the version is not unloaded.
    """

    @property
    def version(self) -> int:
        """Its number."""

    @property
    def signature(self) -> ModelSignature:
        """What requests are validated against; the same object for as long as this version serves."""

    def borrowed(self) -> AbstractContextManager[None]:
        """Keeps the version loaded until the context ends."""


async def run_while_borrowed(servable: Servable, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As `run_off_loop`, while `servable` stays loaded. REQUIRES: the caller submits its request before it waits again."""
    with servable.borrowed():
        return await run_off_loop(function, *args, **kwargs)
