"""The KServe datatypes of PopEF's element types, and the wider datatypes in which a tensor may be served instead.

The compiler narrows a model's inputs and outputs (FP32 to F16, INT64 to S32, FP64 to F32), and clients need not adapt: if config.pbtxt
declares a wider type than the executable, the server casts. Casts among FP16, FP32 and FP64, and between INT64 and INT32, are allowed.
"""

from stoker.backends.api.tensor import DataType
from stoker.backends.ipu.popef.schema import DataType as PopefType

#: 8-bit floats have no KServe datatype.
SERVED = {
    PopefType.BOOL: DataType.BOOL,
    PopefType.F16: DataType.FP16,
    PopefType.F32: DataType.FP32,
    PopefType.F64: DataType.FP64,
    PopefType.S8: DataType.INT8,
    PopefType.U8: DataType.UINT8,
    PopefType.S16: DataType.INT16,
    PopefType.U16: DataType.UINT16,
    PopefType.S32: DataType.INT32,
    PopefType.U32: DataType.UINT32,
    PopefType.S64: DataType.INT64,
    PopefType.U64: DataType.UINT64,
}

_FAMILIES = ((DataType.FP16, DataType.FP32, DataType.FP64), (DataType.INT32, DataType.INT64))


def castable_to(datatype: DataType) -> tuple[DataType, ...]:
    """Returns the further datatypes in which a tensor of the executable may be served."""
    return next((tuple(each for each in family if each is not datatype) for family in _FAMILIES if datatype in family), ())
