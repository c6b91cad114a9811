"""Views of memory that outlive the code that made them, such as a model's output that a slow client still reads."""

from typing import Any, Final

#: A view may keep so much more memory than its own bytes: one part in so many, and a little.
_SPARE_SHARE: Final = 8
_SPARE_BYTES: Final = 4096


def is_whole(view: Any) -> bool:
    """Whether the memory that `view`, an array or a memoryview, keeps is hardly more than its own bytes.

    A request's slice of the outputs of a batch is not: it would keep the outputs of all the others.
    """
    most_bytes = view.nbytes + view.nbytes // _SPARE_SHARE + _SPARE_BYTES
    owner: Any = view
    while owner is not None:
        size_bytes = len(owner) if isinstance(owner, (bytes, bytearray)) else getattr(owner, "nbytes", 0)
        if size_bytes > most_bytes:
            return False
        # An array's memory belongs to its base, a memoryview's to its object. Others, such as values of a runtime, own theirs.
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return True


def kept(piece: bytes | memoryview) -> bytes | memoryview:
    """`piece`, if it may be kept for as long as a client takes to read it; else a copy of it.

    REQUIRES: nothing writes to the memory of a view.
    """
    return piece if isinstance(piece, bytes) or is_whole(piece) else bytes(piece)
