"""System shared memory: the regions that clients have registered, and copies in and out of them.

A region is a part of a POSIX shared-memory object, which on Linux is a file below /dev/shm. Nothing is mapped: tensors are copied by
`pread` and `pwrite`. A client may truncate its object at any moment, and touching a page of a mapping behind the end of its file raises
SIGBUS, which ends the process; a check beforehand cannot prevent it. A read behind the end only returns fewer bytes.

All sums are Python ints, so that offset plus size cannot overflow.
"""

import os
import re
import stat
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.backends.api.errors import AlreadyExists, InvalidRequest, NotFound, TooLarge, Unsupported
from stoker.server.core.limits import Limits

#: The folder of Linux's POSIX shared-memory objects.
SHM_FOLDER = Path("/dev/shm")  # noqa: S108 - not a temporary file: the folder of POSIX shared memory
#: Triton's error text.
DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
#: Prefixes of object names that servers reserve: Triton's and this server's.
RESERVED_PREFIXES = ("triton_python_backend_shm_region_", "stoker_")
#: `shm_open`: one optional leading slash, no other, at most 255 bytes. Names that start with a dot are valid for it, but rejected here.
_KEY = re.compile(r"/?([^/\0.][^/\0]{0,254})\Z", re.DOTALL)
#: Do not follow a link, do not wait for a pipe, do not inherit the descriptor in child processes.
_OPEN_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: The most bytes that Linux copies in one call.
_COPY_BYTES = 0x7FFF_F000


class _Object:
    """An open shared-memory object; it is closed when the last region and the last request that use it release it."""

    __slots__ = ("__weakref__", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        weakref.finalize(self, os.close, fd)

    def size_bytes(self) -> int:
        return os.fstat(self.fd).st_size


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A registered region.

    Attributes:
        name: The region's name.
        key: The name of the shared-memory object.
        offset: Offset in the object, in bytes.
        byte_size: Length in bytes.
    """

    name: str
    key: str
    offset: int
    byte_size: int
    opened: _Object


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """The part of a region that holds one tensor. It keeps the object open, even if a client unregisters the region meanwhile.

    Attributes:
        region: The region.
        offset: Offset in the region, in bytes.
        byte_size: Length in bytes.
    """

    region: Region
    offset: int
    byte_size: int

    def read(self) -> bytes:
        """Returns a copy of the bytes. Safe in a thread.

        Raises:
            InvalidRequest: the object has become shorter since it was registered.
        """
        fd, at = self.region.opened.fd, self.region.offset + self.offset
        pieces: list[bytes] = []
        missing = self.byte_size
        while missing:
            piece = os.pread(fd, min(missing, _COPY_BYTES), at)
            if not piece:
                raise self._has_shrunk()
            pieces.append(piece)
            at += len(piece)
            missing -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def write(self, pieces: Sequence[bytes | memoryview], output: str) -> int:
        """Copies an output's bytes to the start of the span; returns their number. Safe in a thread.

        Raises:
            InvalidRequest: the bytes do not fit, the object has become shorter, or the host has no memory for it.
        """
        size = sum(map(len, pieces))
        if size > self.byte_size:
            raise InvalidRequest(
                f"shared memory size specified with the request for output '{output}' ({self.byte_size} bytes) should be at least {size} "
                "bytes to hold the results"
            )
        at = self.region.offset + self.offset
        # A write behind the end would extend the object. If the client truncates it right after this check, the write extends the client's
        # own object, at most to the registered size.
        if self.region.opened.size_bytes() < at + size:
            raise self._has_shrunk()
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                try:
                    written = os.pwrite(self.region.opened.fd, rest[:_COPY_BYTES], at)
                except OSError:
                    raise InvalidRequest(
                        f"output '{output}' cannot be written to shared memory region '{self.region.name}': no memory is left for it"
                    ) from None
                at += written
                rest = rest[written:]
        return size

    def _has_shrunk(self) -> InvalidRequest:
        return InvalidRequest(f"shared memory region '{self.region.name}' is shorter than when it was registered")


class SharedMemory:
    """The table of regions. Confined to: the event loop, except for spans.

    Attributes:
        is_allowed: Whether clients may use shared memory at all.
    """

    def __init__(self, limits: Limits, *, is_allowed: bool, folder: Path = SHM_FOLDER) -> None:
        """Creates an empty table of objects in `folder`."""
        self.is_allowed = is_allowed
        self._limits = limits
        self._folder = folder
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Opens the object `key` and registers `byte_size` of its bytes from `offset` on as `name`.

        Raises:
            Unsupported: client shared memory is off. AlreadyExists: the name is taken. TooLarge: the table is full.
            InvalidRequest: there is no such object, the key is not allowed, or the range exceeds the object.
        """
        if not self.is_allowed:
            raise Unsupported(DISABLED)
        self._check_name(name)
        object_name = _object_name(name, key)
        if name in self._regions:
            raise AlreadyExists(f"shared memory region '{name}' already in manager")
        if len(self._regions) >= self._limits.shared_memory_regions:
            raise TooLarge(f"{len(self._regions)} shared memory regions are registered, more are not allowed: unregister what is not used")
        opened = self._open(object_name, key)
        if offset < 0 or byte_size <= 0 or offset + byte_size > opened.size_bytes():
            raise InvalidRequest(
                f"failed to register shared memory region '{name}': invalid args: the object has {opened.size_bytes()} bytes, "
                f"which do not hold {byte_size} bytes (at least 1) from offset {offset} on"
            )
        self._regions[name] = Region(name, key, offset, byte_size, opened)

    def unregister(self, name: str) -> None:
        """Unregisters one region, or all if `name` is empty; an unknown name is no error. Requests that use a region finish."""
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def status(self, name: str) -> list[Region]:
        """The region `name`, or all regions if `name` is empty.

        Raises:
            NotFound: there is no such region.
        """
        if not name:
            return list(self._regions.values())
        region = self._regions.get(name)
        if region is None:
            raise NotFound(f"Unable to find system shared memory region: '{name[:128]}'")
        return [region]

    def span(self, name: str, offset: int, byte_size: int) -> Span:
        """`byte_size` bytes of region `name` from `offset` on.

        Raises:
            Unsupported: client shared memory is off. NotFound: there is no such region. InvalidRequest: the range exceeds the region.
        """
        if not self.is_allowed:
            raise Unsupported(DISABLED)
        region = self._regions.get(name)
        if region is None:
            raise NotFound(f"Unable to find shared memory region: '{name[:128]}'")
        if not 0 <= offset < region.byte_size:
            raise InvalidRequest(f"Invalid offset for shared memory region: '{name}'")
        if byte_size < 0 or offset + byte_size > region.byte_size:
            raise InvalidRequest(f"Invalid offset + byte size for shared memory region: '{name}'")
        return Span(region, offset, byte_size)

    def _check_name(self, name: str) -> None:
        if not name:
            raise InvalidRequest("'region name' is necessary to register system shared memory region")
        if len(name) > self._limits.name_length:
            raise InvalidRequest(f"region name has {len(name)} characters, more than the {self._limits.name_length} allowed")

    def _open(self, object_name: str, key: str) -> _Object:
        try:
            opened = _Object(os.open(self._folder / object_name, _OPEN_FLAGS))
        except (OSError, ValueError):  # missing, no permission, or an invalid or too long name
            raise InvalidRequest(f"Unable to open shared memory region: '{key[:128]}'") from None
        if not stat.S_ISREG(os.fstat(opened.fd).st_mode):
            raise InvalidRequest(f"Unable to open shared memory region: '{key[:128]}'")
        return opened


def _object_name(name: str, key: str) -> str:
    """The name of the file that holds the object `key`."""
    found = _KEY.match(key)
    if found is None:
        raise InvalidRequest(
            f"failed to register shared memory region '{name}': invalid key '{key[:128]}', expected the name of a shared memory object: "
            "'/' and then 1 to 255 bytes without '/', not beginning with '.'"
        )
    for prefix in RESERVED_PREFIXES:
        if found[1].startswith(prefix):
            raise InvalidRequest(
                f"cannot register shared memory region '{name}': its key begins with a prefix that is reserved for servers"
            )
    return found[1]
