"""`ReleaseOrder`: holds answers back until every earlier request has its own (config.pbtxt `preserve_ordering`)."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

EntryT = TypeVar("EntryT")
OutcomeT = TypeVar("OutcomeT")


class ReleaseOrder(Generic[EntryT, OutcomeT]):
    """Releases outcomes in the order their entries were expected."""

    def __init__(self, release: Callable[[EntryT, OutcomeT], None]) -> None:
        self._release = release
        self._expected: OrderedDict[int, tuple[EntryT, list[OutcomeT]]] = OrderedDict()

    def expect(self, entry: EntryT) -> None:
        """`entry` will have an outcome."""
        self._expected[id(entry)] = (entry, [])

    def complete(self, entry: EntryT, outcome: OutcomeT) -> None:
        """Gives `entry` its outcome, and releases all that are due."""
        held = self._expected.get(id(entry))
        if held is not None:
            held[1].append(outcome)
            self._drain()

    def forget(self, entry: EntryT) -> None:
        """`entry` was withdrawn: it delays no other."""
        if self._expected.pop(id(entry), None) is not None:
            self._drain()

    def _drain(self) -> None:
        while self._expected:
            entry, outcome = next(iter(self._expected.values()))
            if not outcome:
                return
            self._expected.popitem(last=False)
            self._release(entry, outcome[0])
