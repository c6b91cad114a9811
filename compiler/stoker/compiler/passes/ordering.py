"""Puts passes in an order that all of them can live with.

A list that is in order already stays as it is; otherwise as few passes as possible move, each no further than it has to.
"""

import heapq
from collections.abc import Sequence

from stoker.compiler.errors import PassError
from stoker.compiler.passes.pass_ import Pass


def sort_passes(passes: Sequence[Pass]) -> list[Pass]:
    """`passes` in an order that satisfies `depend` (some occurrence of each must come first) and `before` (every occurrence comes later).

    Raises:
        PassError: two of them exclude each other, one needs a pass that is not in the list, or the constraints go round in a circle.
    """
    _refuse_contradictions(passes)
    followers = _followers(passes)
    waiting_for = [0] * len(passes)
    for after in followers:
        for index in after:
            waiting_for[index] += 1
    ready = [index for index, count in enumerate(waiting_for) if count == 0]
    order: list[int] = []
    while ready:  # of the passes that may run, the one that stood first: this keeps the sort stable
        index = heapq.heappop(ready)
        order.append(index)
        for follower in followers[index]:
            waiting_for[follower] -= 1
            if waiting_for[follower] == 0:
                heapq.heappush(ready, follower)
    if len(order) < len(passes):
        circle = _circle(followers, {index for index, count in enumerate(waiting_for) if count})
        raise PassError("passes cannot be ordered: " + " before ".join(f"'{passes[index].name}'" for index in circle))
    return [passes[index] for index in order]


def _refuse_contradictions(passes: Sequence[Pass]) -> None:
    names = {each.name for each in passes}
    for each in passes:
        if excluded := sorted(each.against & names - {each.name}):
            raise PassError(f"pass '{each.name}' may not run together with '{excluded[0]}'")
        if missing := sorted(each.depend - names):
            raise PassError(f"pass '{each.name}' must come after '{missing[0]}', which is not in the list")
        if each.name in each.depend | each.before:
            raise PassError(f"pass '{each.name}' is ordered against itself")


def _followers(passes: Sequence[Pass]) -> list[set[int]]:
    """For each pass, the positions of those that must run after it."""
    followers: list[set[int]] = [set() for _ in passes]
    first: dict[str, int] = {}
    for index, each in enumerate(passes):
        first.setdefault(each.name, index)
    for index, each in enumerate(passes):
        for name in each.depend:
            followers[first[name]].add(index)
        followers[index].update(later for later, other in enumerate(passes) if other.name in each.before)
    return followers


def _circle(followers: Sequence[set[int]], stuck: set[int]) -> list[int]:
    """One circle among the passes that could not be placed, its first pass repeated at the end.

    INVARIANT: each of `stuck` waits for another of `stuck`, so that walking backwards must come round.
    """
    path = [min(stuck)]
    while True:
        current = path[-1]
        previous = min(index for index in stuck if current in followers[index])
        if previous in path:
            return [previous, *reversed(path[path.index(previous) :])]
        path.append(previous)
