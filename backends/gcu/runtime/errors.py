"""What running on a GCU raises: `StatusError`, with the status that the vendor's interface would report.

    StatusError
    +-- OutOfDeviceMemory    HBM does not suffice
    +-- DeviceFailed         the card is lost, or needs a reset
    +-- StreamTimeout        a stream had not done its work in time; it goes on
    +-- StreamClosed         what was queued will not be done

Names and numbers of the statuses are those of the vendor's public header (`TopsInferRuntime.h`, 2022), its spelling included.
"""

import enum


class Status(enum.IntEnum):
    """`TIFStatus`: why a call failed."""

    TIF_SUCCESS = 0
    TIF_ENGINE_RUN_FAILED = 1
    TIF_PARSER_UNSUPPORTED_MODEL = 2
    TIF_OPTIMIZER_BUILD_FAILED = 3
    TIF_NOT_INITIALIZED = 4
    TIF_INTERNAL_ERROR = 5
    TIF_ALLOCATE_FAILED = 6
    TIF_INVALID_PARAM = 7
    TIF_INVALID_VALUE = 8
    TIF_MIS_MATCHED_DATA_TYPE = 9
    TIF_MIS_MATCHED_SHAPE_OR_DIM = 10
    TIF_MAPPING_ERROR = 11
    TIF_UN_SUPPORTED_DATA_TYPE = 12
    TIF_UN_SUPPORTED_OPERATOR = 13
    TIF_LICENSE_ERROR = 14
    TIF_RUNTIME_PREREQUISITE_MISSING = 15
    TIF_RUNTIME_FP_OVERFLOW = 16
    TIF_VALIUE_OVERFLOW = 17
    TIF_NOT_FOUND = 18
    TIF_ALREADY_EXISTED_TENSOR = 19
    TIF_ALREADY_EXISTED_OP = 20
    TIF_COMPILE_QUANTIZE_FAILED = 21
    TIF_COMPILE_RUN_PASS_FAILED = 22
    TIF_COMPILE_GRAPH_ERROR = 23
    TIF_COMPILE_PARSE_FAILED = 24
    TIF_COMPILE_CONVERT_FAILED = 25
    TIF_LOAD_NON_EXIST_FILE = 26
    TIF_SAVE_NON_EXIST_FILE = 27
    TIF_LOAD_NON_EXIST_PB_FILE = 28
    TIF_EXECUTABLE_CRC_VERIFY_FAILED = 29
    TIF_EXECUTABLE_DEVICE_VERIFY_FAILED = 30
    TIF_MORE_CLUSTER_APPLIED = 31
    TIF_TERMINATED = 32
    TIF_EXECUTABLE_WEIGHT_REFIT_FAILED = 33
    TIF_FINISHED = 34


class StatusError(Exception):
    """A call that failed; its text ends with the status's name.

    Attributes:
        status: The vendor's.
        message: What was wrong, and where, without the status.
    """

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(f"{message} [{status.name}]")
        self.status = status
        self.message = message


class OutOfDeviceMemory(StatusError):
    """The card's HBM does not suffice."""

    def __init__(self, message: str) -> None:
        super().__init__(Status.TIF_ALLOCATE_FAILED, message)


class DeviceFailed(StatusError):
    """The card does not work.

    Attributes:
        is_lost: Whether it is gone for good; otherwise a reset cures it.
    """

    def __init__(self, message: str, *, is_lost: bool) -> None:
        super().__init__(Status.TIF_ENGINE_RUN_FAILED, message)
        self.is_lost = is_lost


class StreamTimeout(StatusError):
    """Work of a stream was not done in the time given; the stream goes on."""

    def __init__(self, message: str) -> None:
        super().__init__(Status.TIF_ENGINE_RUN_FAILED, message)


class StreamClosed(StatusError):
    """The stream ended before it came to this."""

    def __init__(self, message: str) -> None:
        super().__init__(Status.TIF_TERMINATED, message)
