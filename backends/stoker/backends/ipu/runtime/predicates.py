"""Which anchors of a model a queue manager (or a user's handlers) serve, and which get nothing.

A predicate takes an anchor and returns an `AnchorCallbackPolicy`; `or_bind` joins two.
"""

import enum
from collections.abc import Callable, Iterable

from stoker.backends.ipu.popef.schema import Anchor, Metadata
from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError


class AnchorCallbackPolicy(enum.Enum):
    """The kinds of connections of a stream."""

    BIND_USER_CB = enum.auto()
    """The user's data: a queue or a handler."""
    BIND_EMPTY_CB = enum.auto()
    """Nothing: the device reads zeros, and what it writes is dropped."""


AnchorPredicate = Callable[[Anchor], AnchorCallbackPolicy]


def pred_program_flow_main(metadata: Metadata) -> AnchorPredicate:
    """Binds anchors that a main program of `metadata` uses."""
    main = frozenset(metadata.program_flow.main)
    return lambda anchor: _bind_if(not main.isdisjoint(anchor.programs))


def pred_program_not_assigned(anchor: Anchor) -> AnchorCallbackPolicy:
    """Binds anchors that no program claims."""
    return _bind_if(not anchor.programs)


def or_bind(first: AnchorPredicate, second: AnchorPredicate) -> AnchorPredicate:
    """Binds what either binds."""
    user = AnchorCallbackPolicy.BIND_USER_CB
    return lambda anchor: _bind_if(first(anchor) is user or second(anchor) is user)


def bound(anchors: Iterable[Anchor], predicate: AnchorPredicate) -> list[Anchor]:
    """The anchors that `predicate` binds.

    Raises:
        ApplicationRuntimeError: it returns something else than a policy; a bool would silently bind nothing.
    """
    found = []
    for anchor in anchors:
        policy = predicate(anchor)
        if not isinstance(policy, AnchorCallbackPolicy):
            raise ApplicationRuntimeError(f"the predicate says {policy!r} of anchor '{anchor.name}'; expected an AnchorCallbackPolicy")
        if policy is AnchorCallbackPolicy.BIND_USER_CB:
            found.append(anchor)
    return found


def _bind_if(is_bound: bool) -> AnchorCallbackPolicy:
    return AnchorCallbackPolicy.BIND_USER_CB if is_bound else AnchorCallbackPolicy.BIND_EMPTY_CB
