"""The message that identifies a model."""

from stoker_client._pb.adlik_messages import (
    ModelSpec,
)

__all__ = ["ModelSpec"]
