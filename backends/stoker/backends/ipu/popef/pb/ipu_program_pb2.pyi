from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Schedule(_message.Message):
    __slots__ = ("names", "kind", "cycles", "node", "op_type", "tiles", "flops", "data_bytes", "ipu", "stage")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CYCLES_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    OP_TYPE_FIELD_NUMBER: _ClassVar[int]
    TILES_FIELD_NUMBER: _ClassVar[int]
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    DATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    IPU_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    kind: _containers.RepeatedScalarFieldContainer[int]
    cycles: _containers.RepeatedScalarFieldContainer[int]
    node: _containers.RepeatedScalarFieldContainer[int]
    op_type: _containers.RepeatedScalarFieldContainer[int]
    tiles: _containers.RepeatedScalarFieldContainer[int]
    flops: _containers.RepeatedScalarFieldContainer[int]
    data_bytes: _containers.RepeatedScalarFieldContainer[int]
    ipu: _containers.RepeatedScalarFieldContainer[int]
    stage: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, names: _Optional[_Iterable[str]] = ..., kind: _Optional[_Iterable[int]] = ..., cycles: _Optional[_Iterable[int]] = ..., node: _Optional[_Iterable[int]] = ..., op_type: _Optional[_Iterable[int]] = ..., tiles: _Optional[_Iterable[int]] = ..., flops: _Optional[_Iterable[int]] = ..., data_bytes: _Optional[_Iterable[int]] = ..., ipu: _Optional[_Iterable[int]] = ..., stage: _Optional[_Iterable[int]] = ...) -> None: ...

class Bindings(_message.Message):
    __slots__ = ("anchors", "tensors")
    ANCHORS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    anchors: _containers.RepeatedScalarFieldContainer[str]
    tensors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, anchors: _Optional[_Iterable[str]] = ..., tensors: _Optional[_Iterable[str]] = ...) -> None: ...

class SubGraph(_message.Message):
    __slots__ = ("index", "name", "onnx_bytes", "inputs", "outputs", "weights", "steps")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ONNX_BYTES_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    index: int
    name: str
    onnx_bytes: int
    inputs: Bindings
    outputs: Bindings
    weights: Bindings
    steps: Schedule
    def __init__(self, index: _Optional[int] = ..., name: _Optional[str] = ..., onnx_bytes: _Optional[int] = ..., inputs: _Optional[_Union[Bindings, _Mapping]] = ..., outputs: _Optional[_Union[Bindings, _Mapping]] = ..., weights: _Optional[_Union[Bindings, _Mapping]] = ..., steps: _Optional[_Union[Schedule, _Mapping]] = ...) -> None: ...

class MemoryAccount(_message.Message):
    __slots__ = ("ipu", "capacity_bytes", "categories", "category_bytes", "total_bytes", "tile_bytes")
    IPU_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CATEGORIES_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    TILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ipu: int
    capacity_bytes: int
    categories: _containers.RepeatedScalarFieldContainer[str]
    category_bytes: _containers.RepeatedScalarFieldContainer[int]
    total_bytes: int
    tile_bytes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ipu: _Optional[int] = ..., capacity_bytes: _Optional[int] = ..., categories: _Optional[_Iterable[str]] = ..., category_bytes: _Optional[_Iterable[int]] = ..., total_bytes: _Optional[int] = ..., tile_bytes: _Optional[_Iterable[int]] = ...) -> None: ...

class Program(_message.Message):
    __slots__ = ("package_hash", "system", "ipu_version", "tiles_per_ipu", "num_io_tiles", "num_ipus", "replication_factor", "batches_per_step", "micro_batch_size", "batch_axis", "pipeline_stages", "code_bytes", "weight_bytes", "graphs", "memory", "attribute_names", "attribute_values")
    PACKAGE_HASH_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    IPU_VERSION_FIELD_NUMBER: _ClassVar[int]
    TILES_PER_IPU_FIELD_NUMBER: _ClassVar[int]
    NUM_IO_TILES_FIELD_NUMBER: _ClassVar[int]
    NUM_IPUS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    BATCHES_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    BATCH_AXIS_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_STAGES_FIELD_NUMBER: _ClassVar[int]
    CODE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTE_NAMES_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTE_VALUES_FIELD_NUMBER: _ClassVar[int]
    package_hash: str
    system: str
    ipu_version: int
    tiles_per_ipu: int
    num_io_tiles: int
    num_ipus: int
    replication_factor: int
    batches_per_step: int
    micro_batch_size: int
    batch_axis: int
    pipeline_stages: int
    code_bytes: int
    weight_bytes: int
    graphs: _containers.RepeatedCompositeFieldContainer[SubGraph]
    memory: _containers.RepeatedCompositeFieldContainer[MemoryAccount]
    attribute_names: _containers.RepeatedScalarFieldContainer[str]
    attribute_values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, package_hash: _Optional[str] = ..., system: _Optional[str] = ..., ipu_version: _Optional[int] = ..., tiles_per_ipu: _Optional[int] = ..., num_io_tiles: _Optional[int] = ..., num_ipus: _Optional[int] = ..., replication_factor: _Optional[int] = ..., batches_per_step: _Optional[int] = ..., micro_batch_size: _Optional[int] = ..., batch_axis: _Optional[int] = ..., pipeline_stages: _Optional[int] = ..., code_bytes: _Optional[int] = ..., weight_bytes: _Optional[int] = ..., graphs: _Optional[_Iterable[_Union[SubGraph, _Mapping]]] = ..., memory: _Optional[_Iterable[_Union[MemoryAccount, _Mapping]]] = ..., attribute_names: _Optional[_Iterable[str]] = ..., attribute_values: _Optional[_Iterable[str]] = ...) -> None: ...
