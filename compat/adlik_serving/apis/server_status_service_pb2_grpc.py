"""The stub of the server status service."""

from adlik_serving.apis.stubs import stub_class
from stoker_client._pb import adlik_messages as pb

ServerStatusServiceStub = stub_class("ServerStatusService", {"serverStatus": (pb.ServerStatusRequest, pb.ServerStatusResponse)})
