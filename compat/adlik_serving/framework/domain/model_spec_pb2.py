"""Which model is meant."""

from stoker_client._pb.adlik_messages import (
    ModelSpec,
)

__all__ = ["ModelSpec"]
