"""TLS on listening ports: certificates and their renewal, handshakes under limits, alerts and the end of connections."""
