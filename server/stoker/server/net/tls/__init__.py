"""Encrypted ports: whose certificate is shown, who may come in, and what happens before a protocol hears of a connection."""
