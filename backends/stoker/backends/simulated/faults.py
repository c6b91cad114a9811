"""Faults that a simulated device shows on purpose, so that what stands above it can be tested.

A plan is written as `reset@3,hang@10`: on the device's third execution it asks for a reset, on its tenth it hangs. `reset:link@3` names
which reset. Executions are counted from 1 over the device's life, reloads and resets included.
"""

import enum
import threading
from collections.abc import Iterable
from dataclasses import dataclass


class FaultKind(enum.Enum):
    """The kinds of faults."""

    LOST = "lost"
    """The device is gone for good."""
    RESET = "reset"
    """An error that a reset cures."""
    HANG = "hang"
    """The execution never ends by itself."""
    OUT_OF_MEMORY = "oom"
    """The device's memory does not suffice."""
    BAD_OUTPUT = "bad"
    """The execution ends, and its outputs are garbage."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        kind: The kinds of faults.
        execution: At which execution of the device, from 1.
        detail: Which variant, such as `link` of a reset; empty for the usual one.
    """

    kind: FaultKind
    execution: int
    detail: str = ""


class FaultPlan:
    """The executions that fail, and the kind of each failure. Thread-safe."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        """Plans `faults`.

        Raises:
            ValueError: two faults for one execution, or an execution below 1.
        """
        self._faults: dict[int, Fault] = {}
        for fault in faults:
            if fault.execution < 1:
                raise ValueError(f"fault '{fault.kind.value}' at execution {fault.execution}: executions are counted from 1")
            if fault.execution in self._faults:
                raise ValueError(f"two faults are planned for execution {fault.execution}")
            self._faults[fault.execution] = fault
        self._lock = threading.Lock()
        self._executions = 0

    @classmethod
    def parse(cls, text: str) -> "FaultPlan":
        """The plan that a text such as `reset:link@3, hang@10` describes; an empty text plans nothing.

        Raises:
            ValueError: the text is no plan; says which part is wrong.
        """
        return cls(_fault(part.strip()) for part in text.split(",") if part.strip())

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The planned faults."""
        return tuple(self._faults.values())

    def strike(self) -> Fault | None:
        """Counts one execution, and gives the fault planned for it."""
        with self._lock:
            self._executions += 1
            return self._faults.get(self._executions)


def _fault(text: str) -> Fault:
    name, at, execution = text.partition("@")
    kind, _, detail = name.partition(":")
    kinds = {each.value: each for each in FaultKind}
    if kind not in kinds or not at or not execution.isdecimal():
        raise ValueError(f"'{text}' is no fault: expected KIND@EXECUTION or KIND:VARIANT@EXECUTION, with a kind of {', '.join(kinds)}")
    return Fault(kinds[kind], int(execution), detail)
