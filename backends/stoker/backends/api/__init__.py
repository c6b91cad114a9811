"""The plug-in API between the backends and the server. It needs the standard library and numpy only and imports no other package."""
