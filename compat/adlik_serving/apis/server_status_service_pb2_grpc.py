"""The stub of the question whether the server runs."""

from adlik_serving.apis.stubs import stub_class
from stoker_client._pb import adlik_messages as pb

ServerStatusServiceStub = stub_class("ServerStatusService", {"serverStatus": (pb.ServerStatusRequest, pb.ServerStatusResponse)})
