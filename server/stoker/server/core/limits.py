"""Every limit that a frontend enforces on requests, in one module.

A front rejects what exceeds a bound before it allocates for it. The budget of bytes in flight is one for all fronts and is kept by the
engine (`Engine.reserve`); its size stands here with the others.
"""

import math
from dataclasses import dataclass, fields

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on sizes, depths, counts and times.

    Attributes:
        bytes_in_flight: What all requests being served hold together; one larger than that passes alone. A sixteenth is kept for requests
            of up to 64 KiB; several larger requests of one connection hold half of it at most.
        request_bytes: What one request may hold in memory, shared-memory inputs and decoded values included; a larger one is never served.
        grpc_message_bytes: Largest gRPC message, received or sent.
        grpc_inflated_bytes: Largest gRPC message that came compressed, once decompressed.
        grpc_concurrent_streams: HTTP/2 streams one gRPC connection may have open.
        grpc_metadata_bytes: Metadata of one gRPC call.
        connections_per_address: Open connections of one port from one address; None: half of those that the port may have. A proxy is one
            address. Unix-domain sockets have none.
        grpc_connections: Open connections of the gRPC port; never more than three quarters of the files the process may open.
        grpc_concurrent_rpcs: Calls in work on all gRPC connections together; one more is rejected at once.
        grpc_unflushed_bytes: Responses of a gRPC connection that its client does not read; above it the server rejects new calls.
        grpc_control_burst: HTTP/2 control frames (SETTINGS, PING, PRIORITY, WINDOW_UPDATE and their like) that one gRPC connection may send
            at once beyond those that its calls and data entitle it to.
        grpc_control_per_s: The same, each second after.
        grpc_reset_burst: Calls of one gRPC connection that its client may cancel, or that may be refused by REFUSED_STREAM, at once.
        grpc_reset_per_s: The same, each second after.
        grpc_fault_burst: Calls of one gRPC connection that may end because the client broke a rule of HTTP/2, or has sent too much
            metadata, at once.
        grpc_fault_per_s: The same, each second after.
        grpc_handshake_timeout_s: Time a new gRPC connection has for its HTTP/2 preface.
        stream_requests: Requests of one ModelStreamInfer stream that may be in work; reading pauses above it.
        stream_responses: Responses of one streamed request that may wait to be sent.
        http_body_bytes: Largest HTTP body, as sent and after decompression.
        control_bytes: Largest control request (all but infer and load), over HTTP and gRPC.
        control_timeout_s: How long a client waits for a load, an unload, a model operation or a new list of models; the work goes on.
        generate_bytes: Largest body of a generate request: flat JSON is parsed in one go.
        json_bytes: Largest JSON text (the whole body, or the JSON part before binary tensors).
        json_special_bytes: JSON text in which `NaN` or `Infinity` stand, besides long runs of numbers: a slower parser reads those.
        json_depth: Nesting of JSON arrays and objects.
        json_objects: `{` in a JSON text.
        json_arrays: `[` in a JSON text.
        json_values: `,` in a JSON text, which bounds the number of its values.
        string_elements: Elements of BYTES tensors in one request; each takes some 64 bytes of memory, however short it is.
        expansion_bytes: What one request's inputs may take for values that are given once and stand for many elements.
        decode_inline_bytes: Size of what is decoded or encoded (JSON, typed or compressed data) up to which that stays on the event
            loop; more goes to a thread.
        http_connections: Open connections of one HTTP port; never more than three quarters of the files the process may open.
        header_bytes: All header fields of an HTTP request together.
        header_count: Header fields of an HTTP request.
        url_bytes: Request target of an HTTP request.
        chunk_count: Chunks of a chunked HTTP body.
        header_timeout_s: From the first byte of an HTTP request (or the connection's start) to the end of its header.
        body_idle_timeout_s: Silence inside an HTTP body or a gRPC message.
        body_bytes_per_s: Rate that either must keep, measured over the last `body_idle_timeout_s` to twice that.
        body_timeout_s: Time either may take in all.
        write_idle_timeout_s: How long a client may leave an HTTP response, or what is written to a gRPC connection, unread.
        keep_alive_timeout_s: Idle time between HTTP requests of one connection.
        tensor_count: Inputs of one request.
        output_count: Requested outputs of one request.
        dims_count: Dimensions of one tensor.
        shared_memory_regions: Regions of client shared memory that may be registered; each holds a file descriptor.
        traced_models: Models that may have trace settings of their own.
        class_count: Highest values (classification, `cls`) that one response names; each takes some hundred bytes of memory.
        parameter_count: Parameters of one request or tensor.
        name_length: Model and tensor names, in characters.
        id_length: Request id, in characters.
        compress_min_bytes: HTTP responses below it are sent as they are whatever the client accepts.
        tls_handshake_timeout_s: Time a new connection to an encrypted port has for its handshake.
        tls_handshakes: Concurrent handshakes of one port; a further one ends the oldest.
        health_watch_period_s: Period in which changes are sent to a gRPC health watcher.
    """

    bytes_in_flight: int = 512 * MIB
    request_bytes: int = 3072 * MIB
    grpc_message_bytes: int = (1 << 31) - 1
    grpc_inflated_bytes: int = 128 * MIB
    grpc_concurrent_streams: int = 1000
    grpc_metadata_bytes: int = 16 * 1024
    connections_per_address: int | None = None
    grpc_connections: int = 2048
    grpc_concurrent_rpcs: int = 16_384
    grpc_unflushed_bytes: int = 64 * MIB
    grpc_control_burst: int = 1000
    grpc_control_per_s: float = 200.0
    grpc_reset_burst: int = 2000
    grpc_reset_per_s: float = 4000.0
    grpc_fault_burst: int = 200
    grpc_fault_per_s: float = 20.0
    grpc_handshake_timeout_s: float = 3.0
    stream_requests: int = 64
    stream_responses: int = 16
    http_body_bytes: int = 128 * MIB
    control_bytes: int = 64 * 1024
    control_timeout_s: float = 600.0
    generate_bytes: int = 8 * MIB
    json_bytes: int = 64 * MIB
    json_special_bytes: int = 16 * MIB
    json_depth: int = 100
    json_objects: int = 65_536
    json_arrays: int = 2_000_000
    json_values: int = 10_000_000
    string_elements: int = 4_000_000
    expansion_bytes: int = 16 * MIB
    decode_inline_bytes: int = 256 * 1024
    http_connections: int = 1024
    header_bytes: int = 64 * 1024
    header_count: int = 100
    url_bytes: int = 8 * 1024
    chunk_count: int = 65_536
    header_timeout_s: float = 5.0
    body_idle_timeout_s: float = 10.0
    body_bytes_per_s: int = 1024
    body_timeout_s: float = 600.0
    write_idle_timeout_s: float = 10.0
    keep_alive_timeout_s: float = 75.0
    tensor_count: int = 1024
    output_count: int = 1024
    dims_count: int = 32
    shared_memory_regions: int = 256
    traced_models: int = 1024
    class_count: int = 262_144
    parameter_count: int = 256
    name_length: int = 256
    id_length: int = 1024
    compress_min_bytes: int = 1024
    tls_handshake_timeout_s: float = 4.0
    tls_handshakes: int = 512
    health_watch_period_s: float = 1.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None:
                continue
            # Not a number is neither positive nor not, and switches off every comparison it is in.
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"limit {item.name} must be positive and finite, got {value}")
        if self.grpc_message_bytes > (1 << 31) - 1:
            raise ValueError(f"limit grpc_message_bytes must be at most 2147483647 (gRPC's own bound), got {self.grpc_message_bytes}")
