from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA_TYPE_UNSPECIFIED: _ClassVar[DataType]
    BOOL: _ClassVar[DataType]
    F8: _ClassVar[DataType]
    F16: _ClassVar[DataType]
    F32: _ClassVar[DataType]
    F64: _ClassVar[DataType]
    S8: _ClassVar[DataType]
    U8: _ClassVar[DataType]
    S16: _ClassVar[DataType]
    U16: _ClassVar[DataType]
    S32: _ClassVar[DataType]
    U32: _ClassVar[DataType]
    S64: _ClassVar[DataType]
    U64: _ClassVar[DataType]
    F8143: _ClassVar[DataType]
    F8152: _ClassVar[DataType]

class TensorType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNKNOWN: _ClassVar[TensorType]
    INPUT: _ClassVar[TensorType]
    OUTPUT: _ClassVar[TensorType]
DATA_TYPE_UNSPECIFIED: DataType
BOOL: DataType
F8: DataType
F16: DataType
F32: DataType
F64: DataType
S8: DataType
U8: DataType
S16: DataType
U16: DataType
S32: DataType
U32: DataType
S64: DataType
U64: DataType
F8143: DataType
F8152: DataType
UNKNOWN: TensorType
INPUT: TensorType
OUTPUT: TensorType

class TensorInfo(_message.Message):
    __slots__ = ("shape", "data_type", "size_in_bytes")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    SIZE_IN_BYTES_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    data_type: DataType
    size_in_bytes: int
    def __init__(self, shape: _Optional[_Iterable[int]] = ..., data_type: _Optional[_Union[DataType, str]] = ..., size_in_bytes: _Optional[int] = ...) -> None: ...

class BlobInfo(_message.Message):
    __slots__ = ("name", "executable", "tensor_info", "samples")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXECUTABLE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_INFO_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    name: str
    executable: str
    tensor_info: TensorInfo
    samples: int
    def __init__(self, name: _Optional[str] = ..., executable: _Optional[str] = ..., tensor_info: _Optional[_Union[TensorInfo, _Mapping]] = ..., samples: _Optional[int] = ...) -> None: ...

class Anchor(_message.Message):
    __slots__ = ("name", "handle", "tensor_info", "is_per_replica", "type", "programs")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_INFO_FIELD_NUMBER: _ClassVar[int]
    IS_PER_REPLICA_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    name: str
    handle: str
    tensor_info: TensorInfo
    is_per_replica: bool
    type: TensorType
    programs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., handle: _Optional[str] = ..., tensor_info: _Optional[_Union[TensorInfo, _Mapping]] = ..., is_per_replica: bool = ..., type: _Optional[_Union[TensorType, str]] = ..., programs: _Optional[_Iterable[int]] = ...) -> None: ...

class Option(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class ProgramFlow(_message.Message):
    __slots__ = ("load", "main", "save")
    LOAD_FIELD_NUMBER: _ClassVar[int]
    MAIN_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    load: _containers.RepeatedScalarFieldContainer[int]
    main: _containers.RepeatedScalarFieldContainer[int]
    save: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, load: _Optional[_Iterable[int]] = ..., main: _Optional[_Iterable[int]] = ..., save: _Optional[_Iterable[int]] = ...) -> None: ...

class Metadata(_message.Message):
    __slots__ = ("executable", "replication_factor", "num_ipus", "ipu_version", "is_pod", "num_processes", "is_inference", "engine_options", "device_options", "seed_handle", "device_iterations", "anchors", "program_flow", "programs_map")
    class ProgramsMapEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    EXECUTABLE_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    NUM_IPUS_FIELD_NUMBER: _ClassVar[int]
    IPU_VERSION_FIELD_NUMBER: _ClassVar[int]
    IS_POD_FIELD_NUMBER: _ClassVar[int]
    NUM_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    IS_INFERENCE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SEED_HANDLE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    ANCHORS_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FLOW_FIELD_NUMBER: _ClassVar[int]
    PROGRAMS_MAP_FIELD_NUMBER: _ClassVar[int]
    executable: str
    replication_factor: int
    num_ipus: int
    ipu_version: int
    is_pod: bool
    num_processes: int
    is_inference: bool
    engine_options: _containers.RepeatedCompositeFieldContainer[Option]
    device_options: _containers.RepeatedCompositeFieldContainer[Option]
    seed_handle: str
    device_iterations: int
    anchors: _containers.RepeatedCompositeFieldContainer[Anchor]
    program_flow: ProgramFlow
    programs_map: _containers.ScalarMap[int, str]
    def __init__(self, executable: _Optional[str] = ..., replication_factor: _Optional[int] = ..., num_ipus: _Optional[int] = ..., ipu_version: _Optional[int] = ..., is_pod: bool = ..., num_processes: _Optional[int] = ..., is_inference: bool = ..., engine_options: _Optional[_Iterable[_Union[Option, _Mapping]]] = ..., device_options: _Optional[_Iterable[_Union[Option, _Mapping]]] = ..., seed_handle: _Optional[str] = ..., device_iterations: _Optional[int] = ..., anchors: _Optional[_Iterable[_Union[Anchor, _Mapping]]] = ..., program_flow: _Optional[_Union[ProgramFlow, _Mapping]] = ..., programs_map: _Optional[_Mapping[int, str]] = ...) -> None: ...
