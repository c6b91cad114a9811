"""The protocol fronts: transports, codecs, limits, status mapping. Imports none of them: a start pays only for what it uses."""

import os

# gRPC's core writes lines of its own to stderr, which are no log lines of ours, and which any client can cause: one that sends too much
# metadata is answered with a text so long that the core drops it with a complaint. Nothing else turns them off, and the core reads this
# when `grpc` is first imported, which is after this package. Who wants its lines sets the variable.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
