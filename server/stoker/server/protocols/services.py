"""`Services`: the protocols of one server, which all of its ports share."""

from stoker.server.core.limits import Limits
from stoker.server.engine.interface import Engine
from stoker.server.protocols.adlik.service import AdlikService
from stoker.server.protocols.kserve.extensions import Extensions
from stoker.server.protocols.settings import AdlikSettings
from stoker.server.protocols.tfs.service import TfsService


class Services:
    """The services of all protocols. Confined to: the event loop.

    Attributes:
        engine: Runs the requests.
        limits: Bounds on what clients send.
        adlik: Adlik's services.
        tfs: TensorFlow Serving's services.
        extensions: KServe v2's extensions.
    """

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        *,
        adlik: AdlikService | None = None,
        tfs: TfsService | None = None,
        extensions: Extensions | None = None,
    ) -> None:
        """Those that are not given have their default settings."""
        self.engine = engine
        self.limits = limits
        self.adlik = adlik or AdlikService(engine, limits, AdlikSettings())
        self.tfs = tfs or TfsService(engine, limits)
        self.extensions = extensions or Extensions(limits)
