"""System shared memory: the regions that clients have registered, and copies in and out of them.

A region is a part of a POSIX shared-memory object, which on Linux is a file below /dev/shm. Nothing is mapped: tensors are copied at the
border by `pread` and `pwrite`. A client may truncate its object at any moment, and touching a page of a mapping behind the end of its file
raises SIGBUS, which ends the process; no check beforehand can rule that out. A read behind the end merely comes up short.

All sums are of Python ints, so that no offset and size can overflow into bounds.
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

#: Where Linux keeps what `shm_open` opens.
SHM_FOLDER = Path("/dev/shm")  # noqa: S108 - not a temporary file of ours: the folder that POSIX shared memory is
#: Triton's words.
DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
#: Names of objects that servers keep for themselves: Triton's own and ours.
RESERVED_PREFIXES = ("triton_python_backend_shm_region_", "stoker_")
#: `shm_open`: one optional slash in front, none behind, at most 255 bytes; a dot file would be legal there, and is of no use here.
_KEY = re.compile(r"/?([^/\0.][^/\0]{0,254})\Z", re.DOTALL)
#: Not followed if it is a link, not waited for if it is a pipe, not inherited by child processes.
_OPEN_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Linux copies no more at once.
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
        name: What clients call it.
        key: The name of the shared-memory object.
        offset: Where in the object it begins, in bytes.
        byte_size: How long it is.
    """

    name: str
    key: str
    offset: int
    byte_size: int
    opened: _Object


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """A part of a region that one tensor lies in. It keeps the region's memory open, whoever unregisters the region meanwhile.

    Attributes:
        region: The region.
        offset: Where in the region it begins, in bytes.
        byte_size: How long it is.
    """

    region: Region
    offset: int
    byte_size: int

    def read(self) -> bytes:
        """A copy of its bytes. Safe in a thread.

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
        """Copies an output's bytes to its beginning; returns how many. Safe in a thread.

        Raises:
            InvalidRequest: they do not fit, the object has become shorter, or the host has no memory left for it.
        """
        size = sum(map(len, pieces))
        if size > self.byte_size:
            raise InvalidRequest(
                f"shared memory size specified with the request for output '{output}' ({self.byte_size} bytes) should be at least {size} "
                "bytes to hold the results"
            )
        at = self.region.offset + self.offset
        # Writing behind the end would make the client's object longer again. Should it shrink right after this look, that is what
        # happens: by as much as was registered, and to the client's own object.
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
    """The table of regions. Confined to: the event loop, but for what it gives out.

    Attributes:
        is_allowed: Whether clients may use shared memory at all.
    """

    def __init__(self, limits: Limits, *, is_allowed: bool, folder: Path = SHM_FOLDER) -> None:
        """An empty table; `folder` is where objects are found."""
        self.is_allowed = is_allowed
        self._limits = limits
        self._folder = folder
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Opens the object `key` and registers `byte_size` of its bytes from `offset` on as `name`.

        Raises:
            Unsupported: client shared memory is off. AlreadyExists: the name is taken. TooLarge: the table is full.
            InvalidRequest: no such object, a key that may not be used, or bytes that the object does not have.
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
        """Forgets one region, or all where `name` is empty; one that is not registered is no error. Requests that use it finish."""
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def status(self, name: str) -> list[Region]:
        """One region, or all where `name` is empty.

        Raises:
            NotFound: no region is called so.
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
            Unsupported: client shared memory is off. NotFound: no region is called so. InvalidRequest: they are not all in the region.
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
        except (OSError, ValueError):  # absent, not ours to open, too long a name, or one that no file can have
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
