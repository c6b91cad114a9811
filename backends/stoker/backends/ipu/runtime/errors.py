"""The errors of running on an IPU, in the classes of the vendor's runtime.

    IpuRuntimeError
    +-- ApplicationRuntimeError      wrong use, or a program that cannot run: trying again without a change does not help
    |   +-- DeviceUnavailable        no device that fits is free
    |   +-- ProgramEvicted           another executable took the device
    |   +-- SessionStopped           what was queued will not be run
    |   +-- RequestTimeout           the device starved for what a request did not give it
    +-- RecoverableRuntimeError      names the action that makes the device usable again
    +-- UnknownRuntimeError          anything else of the device's; needs a person

Files that cannot be read, or were compiled by another version, raise `PopefError` (and its `PackageHashMismatch`) instead.
"""

import enum


class RecoveryAction(enum.Enum):
    """The action that makes a device usable again."""

    IPU_RESET = "IPU_RESET"
    LINK_RESET = "LINK_RESET"
    PARTITION_RESET = "PARTITION_RESET"
    FULL_RESET = "FULL_RESET"


class IpuRuntimeError(Exception):
    """Root of all that this runtime raises on purpose."""


class ApplicationRuntimeError(IpuRuntimeError):
    """The caller, or the program, did what cannot work."""


class DeviceUnavailable(ApplicationRuntimeError):
    """No device of the system fits and is free."""


class ProgramEvicted(ApplicationRuntimeError):
    """Another executable was loaded to the device, and this session does not reload."""


class SessionStopped(ApplicationRuntimeError):
    """The session ended before it came to this."""


class RequestTimeout(ApplicationRuntimeError):
    """The device waited for data, or for room, that the request did not give it."""


class RecoverableRuntimeError(IpuRuntimeError):
    """The device failed in a way that a reset cures.

    Attributes:
        action: Which reset.
    """

    def __init__(self, message: str, action: RecoveryAction) -> None:
        super().__init__(message)
        self.action = action


class UnknownRuntimeError(IpuRuntimeError):
    """The device failed in a way that nothing here cures."""
