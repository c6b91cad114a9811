"""`PassManager`: runs passes one after another, in an order that suits them all."""

import logging
from collections.abc import Callable, Iterable

import onnx
import onnx_ir as ir

from stoker.compiler.errors import CompileError, OptionError, PassError, ShapeError
from stoker.compiler.passes.ordering import sort_passes
from stoker.compiler.passes.pass_ import AnyModel, Pass
from stoker.compiler.passes.reading import read_model
from stoker.compiler.passes.registry import get_pass
from stoker.compiler.passes.verify import verify

log = logging.getLogger(__name__)

PassProgress = Callable[[int, int, str], None]
"""Called with (passes done, passes in all, name of the pass that runs next; empty at the end)."""

# Errors that are made of nothing but their text, and so can be made again with the pass in front.
_PLAIN_ERRORS = (CompileError, OptionError, PassError, ShapeError)


class PassManager:
    """A list of passes to run on models.

    Args:
        passes: Passes, or names of passes that take no settings.
        verify_each: Checks the model with ONNX's checker and strict shape inference after every pass that changed it.
    """

    def __init__(self, passes: Iterable[Pass | str] = (), *, verify_each: bool = False) -> None:
        self._passes: list[Pass] = []
        self._verify_each = verify_each
        self.add_passes(passes)

    @property
    def passes(self) -> tuple[Pass, ...]:
        """In the order in which they will run, once sorted."""
        return tuple(self._passes)

    def add_passes(self, passes: Iterable[Pass | str]) -> None:
        """Appends to the list.

        Raises:
            PassError: there is no pass of that name.
        """
        self._passes += [get_pass(each) if isinstance(each, str) else each for each in passes]

    def sort_passes(self) -> None:
        """Orders the list by what the passes need of each other (`stoker.compiler.passes.ordering`).

        Raises:
            PassError: there is no such order.
        """
        self._passes = sort_passes(self._passes)

    def run(self, model: AnyModel, progress: PassProgress | None = None) -> AnyModel:
        """Sorts the list and runs it. An `onnx_ir` model is changed in place and returned; a `ModelProto` is left as it was.

        Raises:
            PassError: no order of the passes exists, or a pass failed or left an invalid model; the text names it.
            CompileError: a pass refused the model; the text names the pass.
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
        if type(error) in _PLAIN_ERRORS and not str(error).startswith(f"{each.name}:"):  # options are called as their passes
            raise type(error)(f"pass '{each.name}': {error}") from error
        raise
    except Exception as error:  # a pass is code of anybody, also of users: whatever it raises, say which pass it was
        raise PassError(f"pass '{each.name}' failed: {type(error).__name__}: {error}") from error
