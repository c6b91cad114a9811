"""`ProcessFigures`: metrics of the worker processes, read at each scrape."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from stoker.backends.api.backend import Figure

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class SupervisedProcess(Protocol):
    """The attributes of a `ProcessWorker` that its metrics have."""

    @property
    def pid(self) -> int | None:
        """The process' number; None: there is none now."""

    @property
    def is_closed(self) -> bool:
        """Whether the worker is closed."""

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its metrics."""

    @property
    def model_figures(self) -> Sequence[Figure]:
        """The metrics that the model defines."""


class ProcessFigures:
    """The worker processes of all loaded versions. Confined to: the event loop."""

    def __init__(self) -> None:
        self._workers: WeakSet[SupervisedProcess] = WeakSet()

    def add(self, worker: SupervisedProcess) -> None:
        """Includes `worker` as long as it exists and is not closed."""
        self._workers.add(worker)

    def figures(self) -> Iterator[Figure]:
        """See `Backend.figures`."""
        seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
        for worker in sorted((each for each in self._workers if not each.is_closed), key=lambda each: each.labels["worker"]):
            pid = worker.pid
            yield Figure(
                name="stoker_worker_up",
                help="1 while the worker process of an instance runs and has loaded, 0 while it is started again.",
                kind="gauge",
                value=0 if pid is None else 1,
                labels=worker.labels,
            )
            if pid is not None and (resident := _resident_bytes(pid)) is not None:
                yield Figure(
                    name="stoker_worker_memory_bytes",
                    help="Resident memory of a worker process, shared libraries and shared tensors included.",
                    kind="gauge",
                    value=resident,
                    labels=worker.labels,
                )
            for figure in worker.model_figures:
                # The model's own labels come first, so that instances of two versions may have equal ones.
                labels = {**worker.labels, **figure.labels}
                identity = (figure.name, frozenset(labels.items()))
                if identity not in seen:
                    seen.add(identity)
                    yield replace(figure, labels=labels)


def _resident_bytes(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None
