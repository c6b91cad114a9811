"""`MetricFamily` and `MetricPage`: the metrics of devices. Every sample says whether its device is simulated, and most name the device."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from stoker.backends.api.backend import Figure

Kind = Literal["counter", "gauge"]


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric with a sample for each device.

    Attributes:
        name: Metric name without the prefix; counters end in `_total`, all others are gauges.
        attribute: The attribute of a device's readings that holds the value.
        help: The help text; see `Figure`.
    """

    name: str
    attribute: str
    help: str

    @property
    def kind(self) -> Kind:
        """The metric's kind; see `Figure`."""
        return "counter" if self.name.endswith("_total") else "gauge"

    def read(self, readings: object) -> float:
        """The value, from the readings of one device."""
        return float(getattr(readings, self.attribute))


class MetricPage:
    """Makes the samples of one backend."""

    def __init__(self, prefix: str, device_label: str, *, is_simulated: bool) -> None:
        """Metrics are named `prefix` and a name; `device_label` is the label with the device's number."""
        self._prefix = prefix
        self._simulated = "true" if is_simulated else "false"
        self._device_label = device_label

    def total(self, name: str, text: str, value: float) -> Figure:
        """A gauge of all devices together."""
        return Figure(name=self._prefix + name, help=text, kind="gauge", value=value, labels={"simulated": self._simulated})

    def sample(self, name: str, kind: Kind, text: str, value: float, device: int, **labels: str) -> Figure:
        """A sample of one device."""
        labels = {self._device_label: str(device), "simulated": self._simulated, **labels}
        return Figure(name=self._prefix + name, help=text, kind=kind, value=float(value), labels=labels)

    def samples(self, name: str, kind: Kind, text: str, values: Iterable[tuple[int, float]]) -> Iterator[Figure]:
        """A sample for each device and value."""
        for device, value in values:
            yield self.sample(name, kind, text, value, device)

    def families(self, families: Iterable[MetricFamily], readings: Mapping[int, object]) -> Iterator[Figure]:
        """Each family for each device."""
        for each in families:
            yield from self.samples(each.name, each.kind, each.help, ((device, each.read(found)) for device, found in readings.items()))

    def faults(self, text: str, faults: Mapping[tuple[int, str], int], kind_label: str) -> Iterator[Figure]:
        """The failures by device and kind; `kind_label` is the label with the kind."""
        for (device, kind), count in sorted(faults.items()):
            yield self.sample("faults_total", "counter", text, count, device, **{kind_label: kind})
