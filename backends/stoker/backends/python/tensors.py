"""`Tensor` of `triton_python_backend_utils`, and the element types of Triton."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from stoker.backends.api.layout import Array, plain
from stoker.backends.api.tensor import BY_CONFIG_NAME, DataType
from stoker.backends.python.dlpack import bfloat16_bits, bfloat16_capsule
from stoker.backends.python.errors import TritonModelException

#: Triton's numbers of the element types (`TRITONSERVER_DataType`).
_NUMBERS: dict[DataType, int] = {
    DataType.BOOL: 1, DataType.UINT8: 2, DataType.UINT16: 3, DataType.UINT32: 4, DataType.UINT64: 5, DataType.INT8: 6,
    DataType.INT16: 7, DataType.INT32: 8, DataType.INT64: 9, DataType.FP16: 10, DataType.FP32: 11, DataType.FP64: 12,
    DataType.BYTES: 13, DataType.BF16: 14,
}  # fmt: skip
_BY_NUMBER = {number: datatype for datatype, number in _NUMBERS.items()}
#: BF16 has no numpy type: an array never means it by itself.
_BY_DTYPE: dict[Any, DataType] = {datatype.numpy: datatype for datatype in _NUMBERS if datatype is not DataType.BF16}
_CPU_DEVICE = (1, 0)


class Tensor:
    """A named array of a request or a response."""

    def __init__(self, name: str, numpy_array: Any) -> None:
        """Makes a tensor of `numpy_array`, whose dtype gives the element type; strings are arrays of objects or of bytes.

        Raises:
            TritonModelException: Triton has no such element type.
        """
        if not isinstance(numpy_array, np.ndarray):
            raise TritonModelException(f"tensor '{name}' takes a numpy array, not {type(numpy_array).__name__}")
        array: Array = numpy_array
        if array.dtype.kind == "S":
            array = array.astype(np.object_)
        datatype: DataType | None = _BY_DTYPE.get(array.dtype.newbyteorder("="))
        if datatype is None:
            hint = "; use an array of dtype object, whose elements are str or bytes" if array.dtype.kind == "U" else ""
            raise TritonModelException(f"tensor '{name}' has dtype {array.dtype}, which Triton does not have{hint}")
        self._name = name
        self._datatype = datatype
        self._array = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))

    @classmethod
    def of(cls, name: str, array: Array, datatype: DataType) -> "Tensor":
        """A tensor of `array`, which is of `datatype.numpy`; for BF16 it holds the bits."""
        tensor = object.__new__(cls)
        tensor._name = name
        tensor._datatype = datatype
        tensor._array = array
        return tensor

    def name(self) -> str:
        """The tensor's name."""
        return self._name

    def as_numpy(self) -> Array:
        """The array; it may be written. BYTES elements are `bytes`.

        Raises:
            TritonModelException: the element type is BF16, which numpy does not have.
        """
        if self._datatype is DataType.BF16:
            raise TritonModelException(f"tensor '{self._name}' is BF16, which numpy does not have: use to_dlpack() or torch.from_dlpack()")
        # What arrived over the network is read-only, but models compute in place.
        if not self._array.flags.writeable:
            self._array = self._array.copy()
        return self._array

    def triton_dtype(self) -> int:
        """Triton's number of the element type."""
        return _NUMBERS[self._datatype]

    def shape(self) -> list[int]:
        """The dims, with the batch dimension."""
        return list(self._array.shape)

    def is_cpu(self) -> bool:
        """True: tensors are in the memory of the host."""
        return True

    def to_dlpack(self) -> Any:
        """A DLPack capsule, which frameworks read without a copy.

        Raises:
            TritonModelException: the elements are strings.
        """
        return self.__dlpack__()

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> "Tensor":
        """A tensor of an object with `__dlpack__`, or of a DLPack capsule, in the memory of the host; no copy is made.

        Raises:
            TritonModelException: its memory is not the host's, it is not contiguous, or Triton does not have its element type.
        """
        capsule = tensor
        if hasattr(tensor, "__dlpack__"):
            if int(tensor.__dlpack_device__()[0]) != _CPU_DEVICE[0]:
                raise TritonModelException(f"tensor '{name}' is in the memory of a device: move it to the host first, as by .cpu()")
            capsule = tensor.__dlpack__()
        bits = bfloat16_bits(capsule)
        if bits is not None:
            return Tensor.of(name, bits, DataType.BF16)
        try:
            return Tensor(name, np.from_dlpack(_Capsule(capsule)))
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise TritonModelException(f"tensor '{name}': DLPack: {error}") from error

    def __dlpack__(self, stream: object = None, **_options: object) -> Any:
        """See `to_dlpack`."""
        if self._datatype is DataType.BYTES:
            raise TritonModelException(f"tensor '{self._name}' holds strings, which DLPack does not have")
        if self._datatype is DataType.BF16:
            return bfloat16_capsule(plain(self._array))
        array: Any = self.as_numpy()
        return array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        """The host: (1, 0)."""
        return _CPU_DEVICE


class _Capsule:
    """Gives numpy a capsule in the form it takes: an object."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_options: object) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU_DEVICE


def held(tensor: Tensor) -> tuple[Array, DataType]:
    """The array of `tensor` as it is, and its element type; for BF16 the array holds the bits."""
    return tensor._array, tensor._datatype


def as_bytes_array(array: Array) -> Array:
    """An array of objects of the shape of `array` whose elements are `bytes`; text becomes UTF-8, as in Triton."""
    flat = [
        element if type(element) is bytes else bytes(element) if isinstance(element, (bytes, bytearray, memoryview)) else _encoded(element)
        for element in array.reshape(-1).tolist()
    ]
    made = np.empty(len(flat), dtype=np.object_)
    made[:] = flat
    return made.reshape(array.shape)


def _encoded(element: object) -> bytes:
    return str(element).encode("utf-8")


def datatype_of_number(number: int) -> DataType:
    """The element type with Triton's `number`.

    Raises:
        TritonModelException: there is none.
    """
    if number not in _BY_NUMBER:
        raise TritonModelException(f"{number} is no number of an element type of Triton")
    return _BY_NUMBER[number]


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The numpy type of a name such as `TYPE_FP32`; `bool` for TYPE_BOOL, `numpy.object_` for TYPE_STRING.

    Raises:
        TritonModelException: no such name, or TYPE_BF16, which numpy does not have.
    """
    datatype = BY_CONFIG_NAME.get(triton_type_string)
    if datatype is None or datatype is DataType.BF16:
        raise TritonModelException(f"numpy has no type for '{triton_type_string}'")
    return bool if datatype is DataType.BOOL else datatype.numpy.type


def triton_to_numpy_type(data_type: int) -> Any:
    """The numpy type of Triton's number of an element type; None for BF16, which numpy does not have."""
    datatype = datatype_of_number(data_type)
    return None if datatype is DataType.BF16 else datatype.numpy.type


def numpy_to_triton_type(data_type: Any) -> int | None:
    """Triton's number of the element type of a numpy type or dtype; None where Triton has none."""
    dtype = np.dtype(data_type)
    datatype = DataType.BYTES if dtype.kind == "S" else _BY_DTYPE.get(dtype)
    return None if datatype is None else _NUMBERS[datatype]


def serialize_byte_tensor(input_tensor: Any) -> Any:
    """The elements of an array of strings, each behind its length (4 bytes, little-endian); None if there are none."""
    array = np.asarray(input_tensor)
    if array.size == 0 or array.dtype.kind not in "OS":
        return None
    elements: Sequence[bytes] = as_bytes_array(array).reshape(-1).tolist()
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def deserialize_bytes_tensor(encoded_tensor: Any) -> Array:
    """The inverse of `serialize_byte_tensor`: `[elements]` of dtype object.

    Raises:
        TritonModelException: the data ends inside an element.
    """
    data = memoryview(encoded_tensor).cast("B")
    elements: list[bytes] = []
    at = 0
    while at < len(data):
        end = at + 4
        size = int.from_bytes(data[at:end], "little")
        if end + size > len(data):
            raise TritonModelException(f"element {len(elements)} ends at byte {end + size} of {len(data)}")
        elements.append(bytes(data[end : end + size]))
        at = end + size
    made = np.empty(len(elements), dtype=np.object_)
    made[:] = elements
    return made
