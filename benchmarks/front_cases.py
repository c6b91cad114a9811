"""The loads of the frontends, and their limits."""

from dataclasses import dataclass

from benchmarks.comparison import CPU_US, P50_MS, Figure
from benchmarks.load import InFlight
from benchmarks.requests import ADLIK_GRPC, ADLIK_JSON, GRPC, GRPC_STREAM, HTTP_BINARY, HTTP_JSON, TFS_GRPC, TFS_JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A load of a frontend.

    Attributes:
        name: Name in the report.
        protocol: A protocol of `benchmarks.requests`.
        connections, streams: Their product is the number of requests in flight. Eight calls share a gRPC connection unless the case sets
            it.
        most_cpu_us: Target for the server CPU time of a request, microseconds; None: there is none.
        most_p50_ms: Target for the median latency, milliseconds; None: there is none.
        most_of_peer: Target for the ratio of `peer_figure` to Triton's in the same run; None: there is none.
        model: A model of `benchmarks.models`.
        is_above_model: Whether `most_cpu_us` is compared with the CPU time minus that of raw onnxruntime for one row.
    """

    name: str
    protocol: str
    connections: int
    streams: int = 1
    most_cpu_us: float | None = None
    most_p50_ms: float | None = None
    most_of_peer: float | None = None
    model: str = "tiny"
    is_above_model: bool = False

    @property
    def in_flight(self) -> InFlight:
        return InFlight(self.connections, self.streams)

    @property
    def peer_figure(self) -> Figure:
        """The figure that is compared with Triton's: the latency of a lone request, else the CPU time."""
        return P50_MS if self.in_flight.total == 1 else CPU_US


CASES = (
    Case(name="gRPC, c = 1", protocol=GRPC, connections=1, most_p50_ms=0.18, most_of_peer=0.90),
    Case(name="gRPC, c = 8", protocol=GRPC, connections=1, streams=8, most_cpu_us=35, most_of_peer=0.36),
    Case(name="gRPC, c = 32", protocol=GRPC, connections=4, streams=8, most_cpu_us=27, most_of_peer=0.32),
    Case(name="gRPC, one call per channel, c = 32", protocol=GRPC, connections=32, most_cpu_us=40, most_of_peer=0.55),
    Case(name="HTTP binary, c = 1", protocol=HTTP_BINARY, connections=1, most_p50_ms=0.15, most_of_peer=1.00),
    Case(name="HTTP binary, c = 8", protocol=HTTP_BINARY, connections=8, most_cpu_us=50, most_of_peer=0.38),
    Case(name="HTTP binary, c = 32", protocol=HTTP_BINARY, connections=32, most_cpu_us=35, most_of_peer=0.30),
    Case(name="HTTP JSON, c = 1", protocol=HTTP_JSON, connections=1),
    Case(name="HTTP JSON, c = 8", protocol=HTTP_JSON, connections=8, most_cpu_us=55, most_of_peer=0.42),
    Case(name="HTTP JSON, c = 32", protocol=HTTP_JSON, connections=32, most_cpu_us=42, most_of_peer=0.35),
)


def _apart(name: str, protocol: str, connections: int, streams: int = 1, *, most_cpu_us: float, most_of_peer: float) -> Case:
    """A load of a model without dynamic batching: one run of the model for each request."""
    return Case(
        name=f"no batching, {name}",
        protocol=protocol,
        connections=connections,
        streams=streams,
        model="tiny-apart",
        most_cpu_us=most_cpu_us,
        most_of_peer=most_of_peer,
    )


APART_CASES = (
    _apart("gRPC, c = 8", GRPC, 1, 8, most_cpu_us=28, most_of_peer=0.50),
    _apart("gRPC, c = 32", GRPC, 4, 8, most_cpu_us=25, most_of_peer=0.50),
    _apart("HTTP binary, c = 8", HTTP_BINARY, 8, most_cpu_us=28, most_of_peer=0.55),
    _apart("HTTP binary, c = 32", HTTP_BINARY, 32, most_cpu_us=25, most_of_peer=0.55),
)


#: The CPU time is that of the server and its worker processes together.
EXECUTION_CASES = (
    Case(name="worker thread, gRPC, c = 8", protocol=GRPC, connections=1, streams=8, model="tiny-thread"),
    Case(name="worker process, gRPC, c = 1", protocol=GRPC, connections=1, model="tiny-process"),
    Case(name="worker process, gRPC, c = 8", protocol=GRPC, connections=1, streams=8, model="tiny-process", most_cpu_us=60),
    Case(name="worker process, gRPC, c = 32", protocol=GRPC, connections=4, streams=8, model="tiny-process"),
)


#: Two models one after the other.
ENSEMBLE_CASES = (
    Case(name="ensemble of two steps, gRPC, c = 1", protocol=GRPC, connections=1, model="tiny-steps"),
    Case(name="ensemble of two steps, gRPC, c = 8", protocol=GRPC, connections=1, streams=8, model="tiny-steps", most_cpu_us=60),
    Case(name="ensemble of two steps, gRPC, c = 32", protocol=GRPC, connections=4, streams=8, model="tiny-steps"),
)


def _dialect(name: str, protocol: str) -> tuple[Case, ...]:
    """The loads of another protocol, which should cost little more than KServe's in the same encoding."""
    if protocol in (TFS_JSON, ADLIK_JSON):
        return tuple(Case(name=f"{name}, c = {count}", protocol=protocol, connections=count) for count in (8, 32))
    return tuple(Case(name=f"{name}, c = {8 * count}", protocol=protocol, connections=count, streams=8) for count in (1, 4))


#: Without targets: compared with the case of KServe in the same encoding.
DIALECT_CASES = (
    *_dialect("gRPC, ModelStreamInfer", GRPC_STREAM),
    *_dialect("gRPC, TensorFlow Serving", TFS_GRPC),
    *_dialect("gRPC, Adlik", ADLIK_GRPC),
    *_dialect("HTTP JSON, TensorFlow Serving", TFS_JSON),
    *_dialect("HTTP JSON, Adlik", ADLIK_JSON),
)


def _image(name: str, protocol: str, connections: int, streams: int = 1) -> Case:
    """A load with images: 602 KB in, 4 KB out."""
    return Case(name=name, protocol=protocol, connections=connections, streams=streams, model="slice", is_above_model=True, most_cpu_us=350)


IMAGE_CASES = (
    _image("image, gRPC, c = 1", GRPC, 1),
    _image("image, gRPC, c = 8", GRPC, 1, 8),
    _image("image, HTTP binary, c = 1", HTTP_BINARY, 1),
    _image("image, HTTP binary, c = 8", HTTP_BINARY, 8),
)
