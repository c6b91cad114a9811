"""Where the responses of one request go, when a model may return any number of responses.

A worker's thread gives them, the event loop takes them; what lies between is bounded, so that a model that is faster than its client waits.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

Parameters = Mapping[str, bool | int | float | str]
"""A request's own parameters by name."""


class ResponseSink(Protocol):
    """Takes the responses of one request."""

    def put(self, outputs: "Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]") -> bool:
        """Takes one response; waits while too many are unread. False: the client wants no more, stop.

        Called in the worker's thread.
        """
