"""gRPC: method tables, calls, rejections, message framing and metadata, and two transports. This package itself imports no gRPC library."""

import os

# grpcio's core writes log lines of its own to stderr, and any client can cause them: the core drops a response whose status message is
# longer than the client's metadata limit, and logs it. The core reads this variable when `grpc` is first imported. An operator who
# wants the lines sets the variable.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
