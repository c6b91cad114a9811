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
    """Base class of the errors of this runtime."""


class ApplicationRuntimeError(IpuRuntimeError):
    """The call is invalid, or the program cannot run."""


class DeviceUnavailable(ApplicationRuntimeError):
    """No device of the system fits and is free."""


class ProgramEvicted(ApplicationRuntimeError):
    """Another executable was loaded to the device, and this session does not reload."""


class SessionStopped(ApplicationRuntimeError):
    """The session stopped before this work began."""


class RequestTimeout(ApplicationRuntimeError):
    """The device waited in vain for inputs or output memory of the request."""


class RecoverableRuntimeError(IpuRuntimeError):
    """The device failed, and a reset can repair it.

    Attributes:
        action: The reset that is needed.
    """

    def __init__(self, message: str, action: RecoveryAction) -> None:
        super().__init__(message)
        self.action = action


class UnknownRuntimeError(IpuRuntimeError):
    """The device failed, and no reset can repair it."""
