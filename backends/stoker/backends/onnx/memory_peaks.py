"""`PeakTracker`: which runs give ONNX Runtime's memory back, so that one large request does not decide for good what a model holds. Pure.

The arena keeps what the largest run needed, rounded up to powers of two. Where every shape is known that is the memory of a full batch,
and wanted. Where shapes vary, a rare large one would keep a multiple of what the model needs: y = f(x) on 64 MiB left 200 MiB behind, and
66 with the arena shrunk after that run.
"""

#: Runs of less never matter.
LARGE_BYTES = 8 << 20
#: So many times the usual size is rare; the usual one follows the last runs by an eighth each.
TIMES, SHIFT = 4, 3


class PeakTracker:
    """The sizes of one session's runs. Confined to: the one worker that owns it.

    The run after a rare large one gives memory back, too: while the large one ended, its outputs still lay in the arena.
    """

    def __init__(self) -> None:
        self._usual_bytes = 0
        self._was_one = False

    def gives_back(self, size_bytes: int) -> bool:
        """Whether a run whose inputs take `size_bytes`, or the one before it, is so much larger than usual that its memory is not kept."""
        usual = self._usual_bytes
        self._usual_bytes += (size_bytes - usual) >> SHIFT
        was_one, self._was_one = self._was_one, size_bytes > LARGE_BYTES and size_bytes > TIMES * usual
        return was_one or self._was_one
