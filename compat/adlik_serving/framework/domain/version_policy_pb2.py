"""Messages that select the served versions."""

from stoker_client._pb.adlik_messages import (
    VersionPolicyProto,
)

__all__ = ["VersionPolicyProto"]
