"""Further names of flags: Triton's, Adlik's and TensorFlow Serving's words for the same things."""

#: By a flag's own name, in its dashed spelling.
ALIASES: dict[str, tuple[str, ...]] = {
    "model-base-path": ("model-repository", "model-store"),
    "repository-poll-secs": ("fs-poll-wait-seconds",),
    "grpc-port": ("port",),
    "http-port": ("rest-api-port",),
    "model-load-retry-count": ("max-num-load-retries",),
}
#: By alias, the flag's own name.
PRIMARY = {alias: name for name, aliases in ALIASES.items() for alias in aliases}
