"""The stub of the service that changes the model repository."""

from adlik_serving.apis.stubs import stub_class
from stoker_client._pb import adlik_messages as pb

ModelOperateServiceStub = stub_class(
    "ModelOperateService",
    dict.fromkeys(
        ("addModel", "addModelVersion", "deleteModel", "deleteModelVersion", "activateModel", "queryModel"),
        (pb.ModelOperateRequest, pb.ModelOperateResponse),
    ),
)
