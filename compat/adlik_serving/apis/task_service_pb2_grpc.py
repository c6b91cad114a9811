"""The stub of the task service."""

from adlik_serving.apis.stubs import stub_class
from stoker_client._pb import adlik_messages as pb

TaskServiceStub = stub_class("TaskService", {"create": (pb.CreateTaskRequest, pb.CreateTaskResponse)})
