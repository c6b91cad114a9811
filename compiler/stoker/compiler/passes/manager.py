"""`PassManager` sorts passes by their constraints and runs them in that order."""

import heapq
import logging
from collections.abc import Callable, Iterable, Sequence

import onnx
import onnx_ir as ir

from stoker.compiler.errors import CompileError, OptionError, PassError, ShapeError
from stoker.compiler.passes.registry import AnyModel, Pass, get_pass, read_model
from stoker.compiler.passes.shape_inference import verify

log = logging.getLogger(__name__)

PassProgress = Callable[[int, int, str], None]
"""Called with (passes done, passes in all, name of the pass that runs next; empty at the end)."""

# Errors that are constructed from their text alone, so they can be raised again with the name of the pass in front.
_PLAIN_ERRORS = (CompileError, OptionError, PassError, ShapeError)


class PassManager:
    """A list of passes to run on models.

    Args:
        passes: Passes, or names of passes without required settings.
        verify_each: Checks the model with ONNX's checker and strict shape inference after every pass that changed it.
    """

    def __init__(self, passes: Iterable[Pass | str] = (), *, verify_each: bool = False) -> None:
        self._passes: list[Pass] = []
        self._verify_each = verify_each
        self.add_passes(passes)

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Returns the passes in their current order."""
        return tuple(self._passes)

    def add_passes(self, passes: Iterable[Pass | str]) -> None:
        """Appends passes to the list.

        Raises:
            PassError: there is no pass of that name.
        """
        self._passes += [get_pass(each) if isinstance(each, str) else each for each in passes]

    def sort_passes(self) -> None:
        """Sorts the list by the constraints of the passes (see `sort_passes`).

        Raises:
            PassError: there is no such order.
        """
        self._passes = sort_passes(self._passes)

    def run(self, model: AnyModel, progress: PassProgress | None = None) -> AnyModel:
        """Sorts the list and runs it. An `onnx_ir` model is changed in place and returned; a `ModelProto` is left as it was.

        Raises:
            PassError: no order of the passes exists, or a pass failed or left an invalid model; the text names it.
            CompileError: a pass rejected the model; the text names the pass.
        """
        self.sort_passes()
        if isinstance(model, onnx.ModelProto):
            graph = read_model(model)
            self._run(graph, progress)
            return ir.to_proto(graph)
        self._run(model, progress)
        return model

    def _run(self, model: ir.Model, progress: PassProgress | None) -> None:
        for done, each in enumerate(self._passes):
            if progress is not None:
                progress(done, len(self._passes), each.name)
            changed = _run_one(each, model)
            log.debug("pass %s: %s", each.name, "changed the model" if changed else "no change")
            if changed and self._verify_each:
                verify(model, f"after pass '{each.name}'")
        if progress is not None:
            progress(len(self._passes), len(self._passes), "")


def _run_one(each: Pass, model: ir.Model) -> bool:
    try:
        return each.apply(model)
    except CompileError as error:
        if type(error) in _PLAIN_ERRORS and not str(error).startswith(f"{each.name}:"):  # options have the same names as their passes
            raise type(error)(f"pass '{each.name}': {error}") from error
        raise
    except Exception as error:  # custom passes may raise anything; the error must name the pass
        raise PassError(f"pass '{each.name}' failed: {type(error).__name__}: {error}") from error


def sort_passes(passes: Sequence[Pass]) -> list[Pass]:
    """Sorts `passes`: some occurrence of each pass in `depend` comes before its dependent, every occurrence of one in `before` after it.

    A sorted list stays unchanged; otherwise as few passes as possible move, as little as possible.

    Raises:
        PassError: two of them exclude each other, one needs a pass that is not in the list, or the constraints go round in a circle.
    """
    _reject_contradictions(passes)
    followers = _followers(passes)
    waiting_for = [0] * len(passes)
    for after in followers:
        for index in after:
            waiting_for[index] += 1
    ready = [index for index, count in enumerate(waiting_for) if count == 0]
    order: list[int] = []
    while ready:  # a stable sort: of the passes that may run next, take the first one in the list
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


def _reject_contradictions(passes: Sequence[Pass]) -> None:
    names = {each.name for each in passes}
    for each in passes:
        if excluded := sorted(each.against & names - {each.name}):
            raise PassError(f"pass '{each.name}' may not run together with '{excluded[0]}'")
        if missing := sorted(each.depend - names):
            raise PassError(f"pass '{each.name}' must come after '{missing[0]}', which is not in the list")
        if each.name in each.depend | each.before:
            raise PassError(f"pass '{each.name}' is ordered against itself")


def _followers(passes: Sequence[Pass]) -> list[set[int]]:
    """Returns, for each pass, the positions of the passes that must run after it."""
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
    """Returns a cycle among the passes that could not be sorted, with the first pass repeated at the end.

    INVARIANT: each of `stuck` waits for another of `stuck`, so that walking backwards must come round.
    """
    path = [min(stuck)]
    while True:
        current = path[-1]
        previous = min(index for index in stuck if current in followers[index])
        if previous in path:
            return [previous, *reversed(path[path.index(previous) :])]
        path.append(previous)
