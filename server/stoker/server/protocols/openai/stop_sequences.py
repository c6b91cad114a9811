"""`StopFilter`: ends a text before the first stop sequence. Pure.

A stop sequence may lie across pieces. So the end of a piece is held back as long as it may be the beginning of a stop sequence.
"""

from collections.abc import Sequence


class StopFilter:
    """The text of one choice, in pieces.

    Attributes:
        is_stopped: Whether a stop sequence has come; the rest of the text is dropped.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are not empty texts."""
        self._stops = tuple(stops)
        self._held = ""
        self.is_stopped = False

    def push(self, piece: str) -> str:
        """Adds `piece`, and returns the text that may be sent."""
        if self.is_stopped:
            return ""
        if not self._stops:
            return piece
        text = self._held + piece
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.is_stopped = True
            self._held = ""
            return text[: min(found)]
        held = self._length_to_hold(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """The text that was held back, at the end of the model's text."""
        held, self._held = self._held, ""
        return held

    def _length_to_hold(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop sequence."""
        most = min(len(text), max(map(len, self._stops)) - 1)
        for length in range(most, 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
