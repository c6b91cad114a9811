from stoker.server.pb.adlik import model_pb2 as _model_pb2
from google.protobuf import any_pb2 as _any_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TaskType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRAINING_TASK: _ClassVar[TaskType]
    PREDICT_TASK: _ClassVar[TaskType]
TRAINING_TASK: TaskType
PREDICT_TASK: TaskType

class CreateTaskRequest(_message.Message):
    __slots__ = ("model_spec", "task_type", "timeout_seconds", "detail")
    MODEL_SPEC_FIELD_NUMBER: _ClassVar[int]
    TASK_TYPE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    model_spec: _model_pb2.ModelSpec
    task_type: TaskType
    timeout_seconds: int
    detail: _any_pb2.Any
    def __init__(self, model_spec: _Optional[_Union[_model_pb2.ModelSpec, _Mapping]] = ..., task_type: _Optional[_Union[TaskType, str]] = ..., timeout_seconds: _Optional[int] = ..., detail: _Optional[_Union[_any_pb2.Any, _Mapping]] = ...) -> None: ...

class CreateTaskResponse(_message.Message):
    __slots__ = ("status", "model_spec", "task_type", "detail")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MODEL_SPEC_FIELD_NUMBER: _ClassVar[int]
    TASK_TYPE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    status: str
    model_spec: _model_pb2.ModelSpec
    task_type: TaskType
    detail: _any_pb2.Any
    def __init__(self, status: _Optional[str] = ..., model_spec: _Optional[_Union[_model_pb2.ModelSpec, _Mapping]] = ..., task_type: _Optional[_Union[TaskType, str]] = ..., detail: _Optional[_Union[_any_pb2.Any, _Mapping]] = ...) -> None: ...

class ModelOperateRequest(_message.Message):
    __slots__ = ("model_name", "operate_name", "path", "model_version")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    OPERATE_NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    operate_name: str
    path: str
    model_version: int
    def __init__(self, model_name: _Optional[str] = ..., operate_name: _Optional[str] = ..., path: _Optional[str] = ..., model_version: _Optional[int] = ...) -> None: ...

class Version(_message.Message):
    __slots__ = ("version_no", "state", "path")
    VERSION_NO_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    version_no: int
    state: str
    path: str
    def __init__(self, version_no: _Optional[int] = ..., state: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("model_path", "versions")
    MODEL_PATH_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    model_path: str
    versions: _containers.RepeatedCompositeFieldContainer[Version]
    def __init__(self, model_path: _Optional[str] = ..., versions: _Optional[_Iterable[_Union[Version, _Mapping]]] = ...) -> None: ...

class ModelOperateResponse(_message.Message):
    __slots__ = ("status", "error_message", "models")
    class ModelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ModelInfo
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ModelInfo, _Mapping]] = ...) -> None: ...
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    status: str
    error_message: str
    models: _containers.MessageMap[str, ModelInfo]
    def __init__(self, status: _Optional[str] = ..., error_message: _Optional[str] = ..., models: _Optional[_Mapping[str, ModelInfo]] = ...) -> None: ...

class ServerStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServerStatusResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: str
    def __init__(self, status: _Optional[str] = ...) -> None: ...
