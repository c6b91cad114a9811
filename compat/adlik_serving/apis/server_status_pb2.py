"""Messages of the server's status."""

from stoker_client._pb.adlik_messages import (
    ServerStatusRequest,
    ServerStatusResponse,
)

__all__ = ["ServerStatusRequest", "ServerStatusResponse"]
