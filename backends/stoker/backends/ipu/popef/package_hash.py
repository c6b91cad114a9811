"""The package hash: which compiler an executable was made by.

Poplar refuses executables of another build of itself. Here the hash names what a file's meaning depends on: the version of the program's
format, raised by hand, and of the container. So the same sources give the same bytes on every machine and day.
"""

import hashlib

from stoker.backends.ipu.popef.errors import PackageHashMismatch
from stoker.backends.ipu.popef.layout import CONTAINER_VERSION
from stoker.backends.ipu.program import FORMAT_VERSION


def package_hash() -> str:
    """Of this build: 32 hexadecimal digits."""
    return hashlib.sha256(f"stoker ipu: program {FORMAT_VERSION}, container {CONTAINER_VERSION}".encode()).hexdigest()[:32]


def check_package_hash(found: str, path: str = "") -> None:
    """Whether an executable is of this build.

    Args:
        found: The hash it carries.
        path: Its file, for the message.

    Raises:
        PackageHashMismatch: It is of another one; the text names both hashes.
    """
    if found != package_hash():
        raise PackageHashMismatch(
            f"the executable's package hash is {found or 'missing'}, this runtime's is {package_hash()}: compile the model again, "
            "or set check_package_hash to false to try it all the same",
            path=path,
        )
