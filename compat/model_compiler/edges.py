"""`EdgeGraph`: conversions between kinds of models, and the shortest path from a source to a target.

An edge is a function with the type of its argument and the type of its result. A conversion without an edge is a chain of edges, so a new
edge serves every chain that contains it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from model_compiler.request import CompileRequest
from stoker.compiler.errors import CompileError


class Model(Protocol):
    """A kind of model; `label` is its name in messages."""

    @property
    def label(self) -> str: ...


S = TypeVar("S", bound=Model)
T = TypeVar("T", bound=Model)


@dataclass(frozen=True, slots=True)
class Job:
    """The arguments of an edge besides its model.

    Attributes:
        request: The request.
        workspace: A folder for temporary files; it is removed at the end.
    """

    request: CompileRequest
    workspace: Path


@dataclass(frozen=True, slots=True)
class Edge:
    """One conversion."""

    source: type[Any]
    target: type[Any]
    convert: Callable[[Any, Job], Any]


class EdgeGraph:
    """All available conversions."""

    def __init__(self) -> None:
        self._edges: dict[type[Any], list[Edge]] = {}

    def add(self, source: type[S], target: type[T], convert: Callable[[S, Job], T]) -> None:
        """Adds `convert` as the conversion from `source` to `target`."""
        self._edges.setdefault(source, []).append(Edge(source, target, convert))

    def path(self, source: type[Any], target: type[Any]) -> list[Edge]:
        """Returns the path with the fewest edges from `source` to `target`; ties go to the edges that were added first. Empty if both are
        equal.

        Raises:
            CompileError: no way leads there; the text says where ways lead from `source`, and from where ways lead to `target`.
        """
        came_by: dict[type[Any], Edge | None] = {source: None}
        waiting = deque([source])
        while waiting and target not in came_by:
            for edge in self._edges.get(waiting.popleft(), ()):
                if edge.target not in came_by:
                    came_by[edge.target] = edge
                    waiting.append(edge.target)
        if target not in came_by:
            raise CompileError(
                f"there is no way from {source.label} to {target.label}; "
                f"from there ways lead to: {_listed(set(came_by) - {source})}; there, ways lead from: {_listed(self._ancestors(target))}"
            )
        way: list[Edge] = []
        at = came_by[target]
        while at is not None:
            way.append(at)
            at = came_by[at.source]
        return way[::-1]

    def convert(self, model: Model, target: type[T], job: Job) -> T:
        """Converts `model` to a `target` by the shortest path.

        Raises:
            CompileError: there is no way, or a conversion on it failed.
        """
        found: Any = model
        for edge in self.path(type(model), target):
            found = edge.convert(found, job)
        if not isinstance(found, target):
            raise TypeError(f"an edge to {target.__name__} gave a {type(found).__name__}")
        return found

    def _ancestors(self, target: type[Any]) -> set[type[Any]]:
        found: set[type[Any]] = set()
        waiting = [target]
        while waiting:
            at = waiting.pop()
            sources = {edge.source for edges in self._edges.values() for edge in edges if edge.target is at} - found
            found |= sources
            waiting += sources
        return found - {target}


def _listed(kinds: set[type[Any]]) -> str:
    return ", ".join(sorted(kind.label for kind in kinds)) or "nowhere"
