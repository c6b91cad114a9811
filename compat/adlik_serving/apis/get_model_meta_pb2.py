"""Messages with the inputs, outputs and version states of a model."""

from stoker_client._pb.adlik_messages import (
    GetModelMetaRequest,
    GetModelMetaResponse,
    ModelReadyState,
    ModelVersionStatus,
)

__all__ = ["GetModelMetaRequest", "GetModelMetaResponse", "ModelReadyState", "ModelVersionStatus"]
