"""Messages to change the model repository."""

from stoker_client._pb.adlik_messages import (
    ModelInfo,
    ModelOperateRequest,
    ModelOperateResponse,
    Version,
)

__all__ = ["ModelInfo", "ModelOperateRequest", "ModelOperateResponse", "Version"]
