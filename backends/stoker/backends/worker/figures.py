"""Metrics of a model in a worker process: `FigureReporter` sends them to the server, which reads them with `read_figures`."""

import contextlib
import math
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from stoker.backends.api.backend import Figure
from stoker.backends.api.model_metrics import MAX_FAMILIES, MAX_SERIES, check_bounds, check_family, check_labels, series_count
from stoker.backends.worker.arrays import to_json
from stoker.backends.worker.channel import Channel, ChannelClosed, Message
from stoker.backends.worker.protocol import FIGURES

#: Time between two messages, seconds.
PERIOD_S: Final = 1.0


def figures_text(figures: Iterable[Figure]) -> bytes:
    """The description of a FIGURES message."""
    families: dict[str, list[Any]] = {}
    for figure in figures:
        family = families.setdefault(figure.name, [figure.kind, figure.help, []])
        family[2].append([dict(figure.labels), figure.value, *([figure.buckets] if figure.kind == "histogram" else ())])
    return to_json(families)


def read_figures(message: Message) -> "tuple[Figure, ...]":
    """The figures of a FIGURES message.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: the message is damaged.
    """
    found: list[Figure] = []
    count = 0
    families = message.meta
    if len(families) > MAX_FAMILIES:
        raise ValueError(f"{len(families)} families of metrics")
    for name, (kind, description, series) in families.items():
        check_family(name, description)
        if kind not in ("counter", "gauge", "histogram"):
            raise ValueError(f"metric '{name}' is damaged")
        for labels, value, *rest in series:
            check_labels(labels)
            if type(value) not in (int, float) or len(rest) != (kind == "histogram"):
                raise ValueError(f"a value of metric '{name}' is damaged")
            buckets = _buckets(name, rest[0]) if rest else ()
            count += series_count([bound for bound, _ in buckets[:-1]] if rest else None)
            if count > MAX_SERIES:
                raise ValueError(f"metric '{name}' is one of more than {MAX_SERIES} series")
            found.append(Figure(name=name, help=description, kind=kind, value=float(value), labels=labels, buckets=buckets))
    return tuple(found)


def _buckets(name: str, found: Any) -> "tuple[tuple[float, int], ...]":
    counts = [count for _, count in found]
    if any(type(count) is not int or count < 0 for count in counts) or counts != sorted(counts) or not found or found[-1][0] != math.inf:
        raise ValueError(f"a bucket of metric '{name}' is damaged")
    check_bounds([bound for bound, _ in found[:-1]])
    return tuple((float(bound), count) for bound, count in found)


class FigureReporter:
    """Sends all figures in one message, at most every `PERIOD_S`, if one of them has changed. In a thread of its own."""

    def __init__(self, channel: Channel, figures: "Callable[[], Iterable[Figure]]") -> None:
        self._channel = channel
        self._figures = figures
        self._sent = figures_text(())
        self._is_over = threading.Event()

    def start(self) -> None:
        """Starts the thread, which ends with the process or `stop`."""
        threading.Thread(target=self._run, name="stoker-figures", daemon=True).start()

    def stop(self) -> None:
        """Sends no more."""
        self._is_over.set()

    def report(self) -> None:
        """Sends the figures, if one has changed.

        Raises:
            ChannelClosed: the server is gone. OSError, ValueError: they cannot be sent.
        """
        text = figures_text(self._figures())
        if text != self._sent:
            self._channel.send(FIGURES, meta=text)
            self._sent = text

    def _run(self) -> None:
        while True:
            try:
                with contextlib.suppress(OSError, ValueError):
                    self.report()
            except ChannelClosed:
                return
            if self._is_over.wait(PERIOD_S):
                return
