"""PopEF's element types as clients know them, and those in which a tensor of an executable may be served instead.

The compiler narrows a model's inputs and outputs (FP32 to F16, INT64 to S32, FP64 to F32), and clients need not know: where config.pbtxt
has a wider type than the executable, the server casts. Allowed is any cast among FP16, FP32 and FP64, and between INT64 and INT32.
"""

from stoker.backends.api.tensor import DataType
from stoker.backends.ipu.popef.schema import DataType as PopefType

#: 8-bit floats have no type on the wire.
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
    """The further datatypes in which a tensor of the executable may be served."""
    return next((tuple(each for each in family if each is not datatype) for family in _FAMILIES if datatype in family), ())
