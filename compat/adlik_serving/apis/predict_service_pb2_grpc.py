"""The stub of the prediction service."""

from adlik_serving.apis.stubs import stub_class
from stoker_client._pb import adlik_messages as pb

PredictServiceStub = stub_class(
    "PredictService",
    {
        "predict": (pb.PredictRequest, pb.PredictResponse),
        "getModelMeta": (pb.GetModelMetaRequest, pb.GetModelMetaResponse),
    },
)
