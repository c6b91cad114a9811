from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SectionInfo(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("name", "dtype", "dims")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    dims: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., dims: _Optional[_Iterable[int]] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("batch_size", "onnx_bytes", "workspace_bytes", "flops", "hbm_traffic_bytes", "run_s")
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    ONNX_BYTES_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    HBM_TRAFFIC_BYTES_FIELD_NUMBER: _ClassVar[int]
    RUN_S_FIELD_NUMBER: _ClassVar[int]
    batch_size: int
    onnx_bytes: int
    workspace_bytes: int
    flops: int
    hbm_traffic_bytes: int
    run_s: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, batch_size: _Optional[int] = ..., onnx_bytes: _Optional[int] = ..., workspace_bytes: _Optional[int] = ..., flops: _Optional[int] = ..., hbm_traffic_bytes: _Optional[int] = ..., run_s: _Optional[_Iterable[float]] = ...) -> None: ...

class Executable(_message.Message):
    __slots__ = ("format_version", "name", "card", "precision", "inputs", "outputs", "batches", "weights", "attribute_names", "attribute_values")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CARD_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTE_NAMES_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTE_VALUES_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    name: str
    card: str
    precision: str
    inputs: _containers.RepeatedCompositeFieldContainer[Tensor]
    outputs: _containers.RepeatedCompositeFieldContainer[Tensor]
    batches: _containers.RepeatedCompositeFieldContainer[Batch]
    weights: _containers.RepeatedCompositeFieldContainer[Tensor]
    attribute_names: _containers.RepeatedScalarFieldContainer[str]
    attribute_values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, format_version: _Optional[int] = ..., name: _Optional[str] = ..., card: _Optional[str] = ..., precision: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., batches: _Optional[_Iterable[_Union[Batch, _Mapping]]] = ..., weights: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., attribute_names: _Optional[_Iterable[str]] = ..., attribute_values: _Optional[_Iterable[str]] = ...) -> None: ...
