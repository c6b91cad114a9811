"""Every limit that a frontend enforces on requests, in one module.

A frontend rejects a request that exceeds a bound before it allocates memory for it. All frontends share one budget of bytes in flight,
which the engine keeps (`Engine.budget`); its size is one of the limits.
"""

import math
from dataclasses import dataclass, fields

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on sizes, depths, counts and times.

    Attributes:
        bytes_in_flight: Bound on the bytes of all requests in flight; a single larger request passes alone. A sixteenth is reserved for
            requests of up to 64 KiB; several larger requests of one connection hold half of the budget at most.
        admission_wait_s: How long a request that does not fit `bytes_in_flight` waits for room, with its sender held back; then it is
            rejected.
        admission_waiting: Requests that may wait for room; a further one is rejected at once. A waiting gRPC request has sent up to 4 MiB,
            an HTTP request up to 64 KiB, which do not count in `bytes_in_flight`.
        request_bytes: What one request may hold in memory, including shared-memory inputs and decoded values; a larger request is always
            rejected.
        grpc_message_bytes: Largest gRPC message, received or sent.
        grpc_inflated_bytes: Largest compressed gRPC message, measured after decompression.
        grpc_concurrent_streams: Concurrent HTTP/2 streams of one gRPC connection.
        grpc_metadata_bytes: Metadata of one gRPC call.
        connections_per_address: Open connections from one address to one port; None: half of the port's bound. All clients behind a proxy
            share its address. Unix-domain sockets have no such bound.
        grpc_connections: Open connections of the gRPC port; never more than three quarters of the files the process may open.
        grpc_concurrent_rpcs: Calls in work on all gRPC connections together; a further call is rejected at once.
        grpc_unflushed_bytes: Bytes of unflushed responses of one gRPC connection above which the server rejects new calls of that
            connection.
        grpc_control_burst: HTTP/2 control frames (SETTINGS, PING, PRIORITY, WINDOW_UPDATE and similar) that one gRPC connection may send at
            once, in addition to those that its calls and data account for.
        grpc_control_per_s: The same, each second after.
        grpc_reset_burst: Calls of one gRPC connection that its client may cancel, or that may be refused by REFUSED_STREAM, at once.
        grpc_reset_per_s: The same, each second after.
        grpc_fault_burst: Calls of one gRPC connection that may end because the client broke a rule of HTTP/2, or has sent too much
            metadata, at once.
        grpc_fault_per_s: The same, each second after.
        grpc_handshake_timeout_s: Time a new gRPC connection has for its HTTP/2 preface.
        stream_requests: Requests of one ModelStreamInfer stream that may be in work; reading pauses above it.
        stream_responses: Responses of one streamed request that may wait for transmission.
        http_body_bytes: Largest HTTP body, as sent and after decompression.
        control_bytes: Largest control request (all but infer and load), over HTTP and gRPC.
        control_timeout_s: How long a client waits for a load, an unload, a model operation or a new list of models; the work continues
            after that.
        generate_bytes: Largest body of a generate request: flat JSON is parsed in one go.
        json_bytes: Largest JSON text (the whole body, or the JSON part before binary tensors).
        adlik_json_bytes: Largest JSON body of an Adlik predict request; its long tensors are decoded without a JSON parser, and the bounds
            of JSON apply to the remainder.
        json_special_bytes: JSON text that contains `NaN` or `Infinity` outside long runs of numbers: a slower parser reads it.
        json_depth: Nesting of JSON arrays and objects.
        json_objects: `{` in a JSON text.
        json_arrays: `[` in a JSON text.
        json_values: `,` in a JSON text, which bounds the number of its values.
        string_elements: Elements of BYTES tensors in one request; each takes some 64 bytes of memory, however short it is.
        expansion_bytes: Memory of one request's inputs for values that are given once and repeated for many elements.
        decode_inline_bytes: Data (JSON, typed or compressed) up to this size is decoded or encoded on the event loop; larger data in a
            thread.
        http_connections: Open connections of one HTTP port; never more than three quarters of the files the process may open.
        header_bytes: All header fields of an HTTP request together.
        header_count: Header fields of an HTTP request.
        url_bytes: Request target of an HTTP request.
        chunk_count: Chunks of a chunked HTTP body.
        header_timeout_s: From the first byte of an HTTP request (or the connection's start) to the end of its header.
        body_idle_timeout_s: Longest pause between bytes of an HTTP body or a gRPC message.
        body_bytes_per_s: Least rate of an HTTP body or a gRPC message, over the last one to two `body_idle_timeout_s`.
        body_timeout_s: Longest time from the first to the last byte of an HTTP body or a gRPC message.
        write_idle_timeout_s: How long a client may leave an HTTP response, or data of a gRPC connection, unread.
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
        compress_min_bytes: HTTP responses below this size are never compressed.
        tls_handshake_timeout_s: Time a new connection to an encrypted port has for its handshake.
        tls_handshakes: Concurrent handshakes of one port; a further one ends the oldest.
        health_watch_period_s: Period in which changes are sent to a gRPC health watcher.
    """

    bytes_in_flight: int = 512 * MIB
    admission_wait_s: float = 10.0
    admission_waiting: int = 32
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
    adlik_json_bytes: int = 128 * MIB
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
            # NaN makes every comparison with the limit false, which would disable it.
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"limit {item.name} must be positive and finite, got {value}")
        if self.admission_wait_s > self.body_timeout_s:
            raise ValueError(
                f"limit admission_wait_s must be at most body_timeout_s, {self.body_timeout_s:g}: the wait counts for it; "
                f"got {self.admission_wait_s:g}"
            )
        if self.grpc_message_bytes > (1 << 31) - 1:
            raise ValueError(f"limit grpc_message_bytes must be at most 2147483647 (gRPC's own bound), got {self.grpc_message_bytes}")
