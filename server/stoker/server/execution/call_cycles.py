"""Finds calls between models that could never run: cycles of models whose instances all wait for each other."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol


class CallingWorker(Protocol):
    """An instance in a worker process; see `ProcessWorker`."""

    @property
    def process(self) -> object | None:
        """The process; None: there is none now."""

    @property
    def free_slots(self) -> int:
        """The number of batches that it would accept now."""

    @property
    def depth(self) -> int:
        """The number of batches that it runs at a time."""


class Callee(Protocol):
    """A model that is called; one object for each loaded version."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def processes(self) -> Sequence[CallingWorker]:
        """Its instances; empty if some of them are not in worker processes."""


def cycle_of(caller: object, callee: Callee, waits: Mapping[object, Iterable[Callee]]) -> list[str]:
    """The models of the cycle that a call would close, in the order of the calls, first and last the one that calls.

    Empty: `callee` has an instance that can run the call, now or once its batch has ended.

    Args:
        caller: The process that calls.
        callee: The model that it calls.
        waits: The models whose responses processes wait for, one for each call.
    """
    names = _stuck(caller, callee, waits, [])
    return [names[-1], *names] if names else []


def _stuck(caller: object, callee: Callee, waits: Mapping[object, Iterable[Callee]], path: list[Callee]) -> list[str]:
    """The models from `callee` to the one that calls, if all instances of `callee` wait for calls that wait for `caller`."""
    if any(each is callee for each in path):
        return [callee.name]
    names: list[str] = []
    for worker in callee.processes:
        if worker.process is None or worker.free_slots > 0:
            return []
        waiting = 0
        if worker.process is caller:
            waiting += 1
            names = [callee.name]
        by_identity = Counter(id(each) for each in waits.get(worker.process, ()))
        for each in {id(each): each for each in waits.get(worker.process, ())}.values():
            found = _stuck(caller, each, waits, [*path, callee])
            if found:
                waiting += by_identity[id(each)]
                names = names or [callee.name, *found]
        if waiting < worker.depth:
            return []
    return names
