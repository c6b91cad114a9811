"""What a model takes and gives, and how its versions are."""

from stoker_client._pb.adlik_messages import (
    GetModelMetaRequest,
    GetModelMetaResponse,
    ModelReadyState,
    ModelVersionStatus,
)

__all__ = ["GetModelMetaRequest", "GetModelMetaResponse", "ModelReadyState", "ModelVersionStatus"]
