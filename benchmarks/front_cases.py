"""The loads of the frontends, their limits, and the cost of the server they are compared with."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.load import InFlight
from benchmarks.requests import GRPC, HTTP_BINARY, HTTP_JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A load of a frontend.

    Attributes:
        name: Name in the report.
        protocol: A protocol of `wire`.
        connections, streams: Their product is the number of requests in flight. Eight calls share a gRPC connection unless the case sets
            it.
        most_cpu_us: Target for the server CPU time of a request, microseconds; None: there is none.
        most_p50_ms: Target for the median latency, milliseconds; None: there is none.
        triton_cpu_us: CPU time of Triton 2.51 with a native ONNX Runtime backend on the machine of the published measurement, microseconds;
            the echo on that machine is `REFERENCE_ECHO_CPU_US`.
        triton_p50_ms: Triton's median latency in the same measurement.
        model: A model of `benchmarks.models`.
        is_above_model: Whether `most_cpu_us` is compared with the CPU time minus that of raw onnxruntime for one row.
    """

    name: str
    protocol: str
    connections: int
    streams: int = 1
    most_cpu_us: float | None = None
    most_p50_ms: float | None = None
    triton_cpu_us: float | None = None
    triton_p50_ms: float | None = None
    model: str = "tiny"
    is_above_model: bool = False

    @property
    def is_one_call_per_channel(self) -> bool:
        """Whether the case has many connections with one call each."""
        return self.protocol == GRPC and self.connections > 1 and self.streams == 1

    @property
    def in_flight(self) -> InFlight:
        return InFlight(self.connections, self.streams)


CASES = (
    Case(name="gRPC, c = 1", protocol=GRPC, connections=1, most_p50_ms=0.18, triton_cpu_us=188, triton_p50_ms=0.20),
    Case(name="gRPC, c = 8", protocol=GRPC, connections=1, streams=8, most_cpu_us=35, triton_cpu_us=65),
    Case(name="gRPC, c = 32", protocol=GRPC, connections=4, streams=8, most_cpu_us=27, triton_cpu_us=55),
    Case(name="gRPC, one call per channel, c = 32", protocol=GRPC, connections=32, most_cpu_us=40, triton_cpu_us=51),
    Case(name="HTTP binary, c = 1", protocol=HTTP_BINARY, connections=1, most_p50_ms=0.15, triton_cpu_us=124, triton_p50_ms=0.16),
    Case(name="HTTP binary, c = 8", protocol=HTTP_BINARY, connections=8, most_cpu_us=50, triton_cpu_us=62),
    Case(name="HTTP binary, c = 32", protocol=HTTP_BINARY, connections=32, most_cpu_us=35, triton_cpu_us=53),
    Case(name="HTTP JSON, c = 1", protocol=HTTP_JSON, connections=1, triton_cpu_us=103),
    Case(name="HTTP JSON, c = 8", protocol=HTTP_JSON, connections=8, most_cpu_us=55, triton_cpu_us=60),
    Case(name="HTTP JSON, c = 32", protocol=HTTP_JSON, connections=32, most_cpu_us=42, triton_cpu_us=58),
)


def _apart(name: str, protocol: str, connections: int, streams: int = 1) -> Case:
    """A load of a model without dynamic batching: one run of the model for each request."""
    return Case(name=f"no batching, {name}", protocol=protocol, connections=connections, streams=streams, model="tiny-apart")


APART_CASES = (
    _apart("gRPC, c = 8", GRPC, 1, 8),
    _apart("gRPC, c = 32", GRPC, 4, 8),
    _apart("HTTP binary, c = 8", HTTP_BINARY, 8),
    _apart("HTTP binary, c = 32", HTTP_BINARY, 32),
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

#: CPU time of a bare grpc.aio echo of bytes in the published measurement, microseconds, by calls in flight. Its ratio to the same echo here
#: scales the published figures.
REFERENCE_ECHO_CPU_US: Mapping[int, float] = {1: 311, 8: 260, 32: 262}
