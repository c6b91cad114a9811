"""A short time slice for the event loop's thread: it gets a core when it wants one, beside models that take all of them.

Linux gives a core to whoever is owed time and whose slice would end first (EEVDF), and lets a waking thread that is owed time push aside a
running one whose slice is longer. Slices are alike unless a thread asks for another (1.4 ms on two cores, 2.8 ms on eight or more), and
their end is seen at a tick of the clock, every 4 ms at the usual 250 Hz: so long may a loop that works some microseconds at a time wait for
a thread in the middle of a convolution. How much of the cores each gets stays as it is: a slice is no priority, and takes no privilege.
"""

import ctypes
import logging
import os
import platform

log = logging.getLogger("stoker.server")

#: Numbers of sched_setattr and sched_getattr: the C library has no functions for them before glibc 2.41.
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275), "riscv64": (274, 275)}
_SCHED_OTHER = 0
#: What the thread starts has the ordinary slice again, onnxruntime's threads among it.
_RESET_ON_FORK = 1


class _Attributes(ctypes.Structure):
    """`struct sched_attr` of linux/sched/types.h, in its first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("slice_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def shorten_time_slice() -> bool:
    """Halves the slice of the calling thread, and of none that it starts later; whether the system does that.

    Half is short enough to push others aside, and longer than the loop mostly works before it sleeps: a thread whose slice has ended
    gives way at the next tick. Linux knows slices of a thread's own from 6.12 on. A thread of negative nice value keeps its slice: the
    threads it starts would lose the value.
    """
    attributes = _read()
    if attributes is None or attributes.policy != _SCHED_OTHER or attributes.nice < 0 or not attributes.slice_ns:
        return False
    attributes.size = ctypes.sizeof(attributes)
    attributes.slice_ns //= 2
    attributes.flags |= _RESET_ON_FORK
    return _call(0, ctypes.byref(attributes), 0)


def time_slice_ns() -> int | None:
    """The slice of the calling thread, in nanoseconds; None where the system does not tell."""
    attributes = _read()
    return attributes.slice_ns or None if attributes is not None else None


def _read() -> _Attributes | None:
    attributes = _Attributes()
    return attributes if _call(1, ctypes.byref(attributes), ctypes.sizeof(attributes), 0) else None


def _call(which: int, *arguments: object) -> bool:
    """Calls `_CALLS[...][which]` for the calling thread; whether it succeeded. A sandbox may refuse it: no reason for more than a word."""
    numbers = _CALLS.get(platform.machine())
    if platform.system() != "Linux" or numbers is None:
        return False
    try:
        syscall = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError) as error:  # an interpreter linked statically, as with musl
        log.debug("the event loop keeps its ordinary time slice: %s", error)
        return False
    if syscall(numbers[which], 0, *arguments) == 0:
        return True
    log.debug("the event loop keeps its ordinary time slice: %s", os.strerror(ctypes.get_errno()))
    return False
