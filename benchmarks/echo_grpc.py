"""A bare grpc.aio server: what a gRPC call costs in Python before anything is served. A process of its own.

    python -m benchmarks.echo_grpc bytes RESPONSE_FILE      takes bytes, answers the file's bytes; parses nothing
    python -m benchmarks.echo_grpc protobuf RESPONSE_FILE   parses the ModelInferRequest, builds a ModelInferResponse around the tensor

Prints its port as one JSON line, and ends when standard input closes.
"""

import asyncio
import json
import sys
from pathlib import Path

import grpc

from stoker_client._pb import messages as pb

SERVICE = "inference.GRPCInferenceService"


def bytes_handler(response: bytes) -> grpc.RpcMethodHandler:
    """A ModelInfer that answers every request with `response`."""

    async def infer(_request: bytes, _context: object) -> bytes:
        return response

    return grpc.unary_unary_rpc_method_handler(infer)


def protobuf_handler() -> grpc.RpcMethodHandler:
    """A ModelInfer that answers with the first input tensor as the output `y`."""

    async def infer(request: pb.ModelInferRequest, _context: object) -> pb.ModelInferResponse:
        tensor = request.inputs[0]
        response = pb.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
        response.outputs.add(name="y", datatype=tensor.datatype, shape=tensor.shape)
        response.raw_output_contents.append(request.raw_input_contents[0])
        return response

    return grpc.unary_unary_rpc_method_handler(
        infer, request_deserializer=pb.ModelInferRequest.FromString, response_serializer=pb.ModelInferResponse.SerializeToString
    )


async def serve(handler: grpc.RpcMethodHandler) -> None:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"ModelInfer": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(json.dumps({"port": port}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


def main() -> None:
    mode, response_file = sys.argv[1:]
    handler = protobuf_handler() if mode == "protobuf" else bytes_handler(Path(response_file).read_bytes())
    asyncio.run(serve(handler))


if __name__ == "__main__":
    main()
