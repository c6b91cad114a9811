"""The metrics that backends show of their devices."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import Metric

from stoker.backends.api.backend import Backend


class BackendFamilies:
    """Collects the figures of every backend in use at a scrape. Confined to: the event loop."""

    def __init__(self, backends: Callable[[], Iterable[Backend]]) -> None:
        """`backends`: gives those in use now."""
        self._backends = backends

    def collect(self) -> Iterator[Metric]:
        """The families, each complete, in the order their names first come."""
        families: dict[str, Metric] = {}
        for backend in self._backends():
            for figure in backend.figures():
                family = families.setdefault(figure.name, Metric(figure.name, figure.help, figure.kind))
                family.add_sample(figure.name, dict(figure.labels), figure.value)
        yield from families.values()
