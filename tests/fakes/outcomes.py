"""The outcomes of requests in tests that expect success."""

from collections.abc import Sequence

import numpy as np

from stoker.backends.api.backend import Arrays
from stoker.backends.api.errors import ServingError


def outputs_of(outcome: Arrays | ServingError) -> dict[str, np.ndarray]:
    """The outputs of a request; fails with its error if there is one."""
    if isinstance(outcome, ServingError):
        raise outcome
    return dict(outcome)


def all_outputs(outcomes: Sequence[Arrays | ServingError]) -> list[dict[str, np.ndarray]]:
    """The outputs of each request of a batch."""
    return [outputs_of(outcome) for outcome in outcomes]
