"""Messages of tasks."""

from stoker_client._pb.adlik_messages import (
    CreateTaskRequest,
    CreateTaskResponse,
    TaskType,
)

__all__ = ["CreateTaskRequest", "CreateTaskResponse", "TaskType"]
