"""Backends: the plug-ins that run compiled models on a device, and the waist (`stoker.backends.api`) they share with the server."""
