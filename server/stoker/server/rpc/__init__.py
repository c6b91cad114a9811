"""gRPC without a transport: tables of methods, calls, refusals, and what bytes mean on the wire. Imports no gRPC library."""
