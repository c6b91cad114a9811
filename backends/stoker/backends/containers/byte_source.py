"""Bytes by position, of a file or of a stream that the caller opened.

The file stays open as long as something of it may still be read, so that what was found in its headers and what is read later are of the
same file, even after a new one took its name.
"""

import io
import os
import stat
import threading
import weakref
from pathlib import Path
from typing import BinaryIO

from stoker.backends.containers.errors import ContainerError, Failure


class ByteSource:
    """Reads at any position, by any thread.

    Attributes:
        path: The file's name, or what stands for it in messages.
        size: Bytes in all.
    """

    def __init__(self, stream: BinaryIO, path: str, failure: Failure = ContainerError) -> None:
        self.path = path
        self._stream = stream
        self._failure = failure
        self._lock = threading.Lock()
        self._start = stream.tell()
        self.size = stream.seek(0, io.SEEK_END) - self._start

    @classmethod
    def of_file(cls, path: str | os.PathLike[str], failure: Failure = ContainerError) -> "ByteSource":
        """Opens a file.

        Raises:
            ContainerError: It cannot be opened; the text says why.
        """
        try:
            if not stat.S_ISREG(Path(path).stat().st_mode):  # a pipe would make us wait for ever
                raise failure("is no regular file", path=os.fspath(path))
            stream = Path(path).open("rb", buffering=0)  # noqa: SIM115  # closed with the last reference to the source
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            reason = error.strerror if isinstance(error, OSError) else error
            raise failure(f"cannot be opened: {reason}", path=os.fspath(path)) from error
        try:
            source = cls(stream, os.fspath(path), failure)
        except BaseException:
            stream.close()
            raise
        weakref.finalize(source, stream.close)
        return source

    @classmethod
    def of_stream(cls, stream: BinaryIO, failure: Failure = ContainerError) -> "ByteSource":
        """Takes a stream, from where it stands to its end. It stays the caller's, who closes it after the last read.

        Raises:
            ContainerError: It gives text, or cannot go back.
        """
        name = getattr(stream, "name", None)
        path = name if isinstance(name, str) else "<stream>"
        try:
            if not isinstance(stream.read(0), bytes):
                raise failure("a binary stream is needed: open the file in mode 'rb'", path=path)
            if not stream.seekable():
                raise failure("a stream that can seek is needed: read it into io.BytesIO first", path=path)
            return cls(stream, path, failure)
        except (OSError, ValueError, AttributeError) as error:  # closed, write-only, or no stream at all
            raise failure(f"cannot be read as a stream: {error}", path=path) from error

    def read_at(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset` on.

        Raises:
            ContainerError: The source ends before, or fails.
        """
        if length > self.size - offset:  # before memory is taken for it
            raise self._failure(f"{length} bytes are expected here, but the file ends at {self.size}", path=self.path, offset=offset)
        parts: list[bytes] = []
        missing = length
        try:
            with self._lock:
                self._stream.seek(self._start + offset)
                while missing:
                    part = self._stream.read(missing)
                    if not part:
                        raise self._failure("the file has become shorter since it was opened", path=self.path, offset=offset)
                    parts.append(part)
                    missing -= len(part)
        except (OSError, ValueError) as error:  # ValueError: the caller closed the stream
            raise self._failure(f"cannot be read: {error}", path=self.path, offset=offset) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)
