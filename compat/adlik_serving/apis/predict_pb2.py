"""Messages of predictions."""

from stoker_client._pb.adlik_messages import (
    PredictRequest,
    PredictResponse,
)

__all__ = ["PredictRequest", "PredictResponse"]
