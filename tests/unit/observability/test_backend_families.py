"""Metrics of backends about their devices."""

from collections.abc import Iterable

from stoker.backends.api.backend import Figure
from stoker.backends.testing.fake_backend import FakeBackend
from stoker.server.observability.families import BackendFamilies
from stoker.server.observability.series import write_exposition


class WithDevices(FakeBackend):
    def figures(self) -> Iterable[Figure]:
        for device in (0, 1):
            labels = {"device": str(device)}
            yield Figure(name="stoker_x_loads_total", help="Loads.", kind="counter", value=device + 2, labels=labels)
            yield Figure(name="stoker_x_busy", help="Busy.", kind="gauge", value=0.5, labels=labels)


def test_metrics_of_one_name_are_one_family() -> None:
    text = write_exposition(BackendFamilies(lambda: [FakeBackend(), WithDevices()]).collect()).decode()
    assert text.splitlines() == [
        "# HELP stoker_x_loads_total Loads.",
        "# TYPE stoker_x_loads_total counter",
        'stoker_x_loads_total{device="0"} 2',
        'stoker_x_loads_total{device="1"} 3',
        "# HELP stoker_x_busy Busy.",
        "# TYPE stoker_x_busy gauge",
        'stoker_x_busy{device="0"} 0.5',
        'stoker_x_busy{device="1"} 0.5',
    ]
