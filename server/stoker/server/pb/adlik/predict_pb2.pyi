from stoker.server.pb.adlik import model_pb2 as _model_pb2
from stoker.server.pb.tensorflow.core.framework import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PredictRequest(_message.Message):
    __slots__ = ("model_spec", "inputs", "batch_size", "output_filter")
    class Class(_message.Message):
        __slots__ = ("count",)
        COUNT_FIELD_NUMBER: _ClassVar[int]
        count: int
        def __init__(self, count: _Optional[int] = ...) -> None: ...
    class Output(_message.Message):
        __slots__ = ("cls",)
        CLS_FIELD_NUMBER: _ClassVar[int]
        cls: PredictRequest.Class
        def __init__(self, cls: _Optional[_Union[PredictRequest.Class, _Mapping]] = ...) -> None: ...
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _tensor_pb2.TensorProto
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_tensor_pb2.TensorProto, _Mapping]] = ...) -> None: ...
    class OutputFilterEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: PredictRequest.Output
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[PredictRequest.Output, _Mapping]] = ...) -> None: ...
    MODEL_SPEC_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FILTER_FIELD_NUMBER: _ClassVar[int]
    model_spec: _model_pb2.ModelSpec
    inputs: _containers.MessageMap[str, _tensor_pb2.TensorProto]
    batch_size: int
    output_filter: _containers.MessageMap[str, PredictRequest.Output]
    def __init__(self, model_spec: _Optional[_Union[_model_pb2.ModelSpec, _Mapping]] = ..., inputs: _Optional[_Mapping[str, _tensor_pb2.TensorProto]] = ..., batch_size: _Optional[int] = ..., output_filter: _Optional[_Mapping[str, PredictRequest.Output]] = ...) -> None: ...

class PredictResponse(_message.Message):
    __slots__ = ("model_spec", "outputs")
    class Class(_message.Message):
        __slots__ = ("idx", "score", "label")
        IDX_FIELD_NUMBER: _ClassVar[int]
        SCORE_FIELD_NUMBER: _ClassVar[int]
        LABEL_FIELD_NUMBER: _ClassVar[int]
        idx: int
        score: float
        label: str
        def __init__(self, idx: _Optional[int] = ..., score: _Optional[float] = ..., label: _Optional[str] = ...) -> None: ...
    class Classes(_message.Message):
        __slots__ = ("cls",)
        CLS_FIELD_NUMBER: _ClassVar[int]
        cls: _containers.RepeatedCompositeFieldContainer[PredictResponse.Class]
        def __init__(self, cls: _Optional[_Iterable[_Union[PredictResponse.Class, _Mapping]]] = ...) -> None: ...
    class Output(_message.Message):
        __slots__ = ("tensor", "batch_classes")
        TENSOR_FIELD_NUMBER: _ClassVar[int]
        BATCH_CLASSES_FIELD_NUMBER: _ClassVar[int]
        tensor: _tensor_pb2.TensorProto
        batch_classes: _containers.RepeatedCompositeFieldContainer[PredictResponse.Classes]
        def __init__(self, tensor: _Optional[_Union[_tensor_pb2.TensorProto, _Mapping]] = ..., batch_classes: _Optional[_Iterable[_Union[PredictResponse.Classes, _Mapping]]] = ...) -> None: ...
    class OutputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: PredictResponse.Output
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[PredictResponse.Output, _Mapping]] = ...) -> None: ...
    MODEL_SPEC_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    model_spec: _model_pb2.ModelSpec
    outputs: _containers.MessageMap[str, PredictResponse.Output]
    def __init__(self, model_spec: _Optional[_Union[_model_pb2.ModelSpec, _Mapping]] = ..., outputs: _Optional[_Mapping[str, PredictResponse.Output]] = ...) -> None: ...

class GetModelMetaRequest(_message.Message):
    __slots__ = ("model_spec",)
    MODEL_SPEC_FIELD_NUMBER: _ClassVar[int]
    model_spec: _model_pb2.ModelSpec
    def __init__(self, model_spec: _Optional[_Union[_model_pb2.ModelSpec, _Mapping]] = ...) -> None: ...

class GetModelMetaResponse(_message.Message):
    __slots__ = ("model_spec", "config", "version_status")
    class VersionStatusEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: _model_pb2.ModelVersionStatus
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[_model_pb2.ModelVersionStatus, _Mapping]] = ...) -> None: ...
    MODEL_SPEC_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    VERSION_STATUS_FIELD_NUMBER: _ClassVar[int]
    model_spec: _model_pb2.ModelSpec
    config: _model_pb2.ModelConfigProto
    version_status: _containers.MessageMap[int, _model_pb2.ModelVersionStatus]
    def __init__(self, model_spec: _Optional[_Union[_model_pb2.ModelSpec, _Mapping]] = ..., config: _Optional[_Union[_model_pb2.ModelConfigProto, _Mapping]] = ..., version_status: _Optional[_Mapping[int, _model_pb2.ModelVersionStatus]] = ...) -> None: ...
