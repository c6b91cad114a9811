"""`poprt.optimizer`: runs a list of passes as one step."""

from collections.abc import Sequence

import onnx

from stoker.compiler.passes import PassManager, get_all_pass_names


class Optimizer:
    """Runs the passes named; they are ordered by what they need of each other."""

    def __init__(self, passes: Sequence[str] = ()) -> None:
        self._passes = PassManager(passes)

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Returns the changed model; the given model is not changed.

        Raises:
            CompileError: a pass rejects it.
        """
        return self._passes.run(model)

    @staticmethod
    def get_available_passes() -> list[str]:
        """Names of all passes."""
        return get_all_pass_names()
