"""Whether the server runs."""

from stoker_client._pb.adlik_messages import (
    ServerStatusRequest,
    ServerStatusResponse,
)

__all__ = ["ServerStatusRequest", "ServerStatusResponse"]
