"""`Rescheduled`: the outcome of a request that its model wants to execute again (Triton: `TRITONSERVER_REQUEST_RELEASE_RESCHEDULE`)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


class Rescheduled(dict[str, "np.ndarray[tuple[int, ...], np.dtype[np.generic]]"]):
    """The outcome of one execution of a request of an iterative sequence: the request has no response yet, and is executed again.

    It holds the outputs of the states that the server keeps (`sequence_batching.state`), by name, as far as the model has changed them.
    """

    __slots__ = ()
