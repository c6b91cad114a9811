"""The command line of `serve`: flags and environment to a `ServerConfig`.

Each file of flags holds one group: a frozen dataclass whose fields are annotated with their flags, and whose `settings()` says which fields
of `ServerConfig` they set. `command.py` joins the groups.
"""
