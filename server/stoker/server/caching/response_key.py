"""`response_key`: the key of a request in the response cache.

Two requests have one key only if every byte that may determine the response is the same: the loaded version, the names, datatypes,
shapes and bytes of the inputs, the outputs wanted, and the client's parameters. The key is a BLAKE2b hash of 256 bits over a text in which
each part has its length in front: different requests have different texts, and no client can construct a second request of the same key.
"""

import hashlib
from typing import Final

import numpy as np

from stoker.server.core.request import Array, InferRequest

#: Bytes of the hash.
DIGEST_BYTES: Final = 32
#: Bytes of the identity of a loaded version, which a key begins with.
IDENTITY_BYTES: Final = 16


def response_key(identity: bytes, request: InferRequest) -> bytes:
    """The key of `request` for the version `identity` (`IDENTITY_BYTES` bytes). The inputs are hashed in place, without a copy.

    The order of the inputs and of the outputs does not matter. Safe in a thread.
    """
    inputs = request.inputs
    parameters = sorted(request.parameters.items())
    head = repr((request.rows, len(inputs), sorted(request.output_names), parameters)).encode("utf-8", "surrogatepass")
    found = hashlib.blake2b(b"%d:" % len(head), digest_size=DIGEST_BYTES, key=identity)
    found.update(head)
    for name in sorted(inputs):
        array = inputs[name]
        about = repr((name, array.dtype.str, array.shape)).encode("utf-8", "surrogatepass")
        found.update(b"%d:" % len(about))
        found.update(about)
        if array.dtype.hasobject:
            elements = array.reshape(-1).tolist()
            found.update(np.fromiter(map(len, elements), np.uint64, len(elements)).data)
            found.update(b"".join(elements))
        else:
            found.update(_flat_bytes(array).data)
    return identity + found.digest()


def input_bytes(request: InferRequest) -> int:
    """Bytes that `response_key` hashes, without the texts; those of BYTES inputs by the request's size."""
    total = 0
    for array in request.inputs.values():
        if array.dtype.hasobject:
            return max(request.size_bytes, total + array.size * 64)
        total += array.nbytes
    return total


def _flat_bytes(array: Array) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """The elements in row-major order as bytes; a view if `array` is contiguous. Datatypes of ml_dtypes export no buffer themselves."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
