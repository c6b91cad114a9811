"""Logs, metrics, traces, and the monitor of the event loop."""
