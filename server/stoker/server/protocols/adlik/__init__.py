"""Adlik's wire interface: its gRPC services and REST routes, as codecs and handlers that know no transport."""
