"""Backends: the plug-ins that run compiled models on a device, and the plug-in API (`stoker.backends.api`) that the server calls."""
