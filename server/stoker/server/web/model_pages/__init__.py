"""Pages about a loaded model for people: its own OpenAPI document, and calls to paste.

`samples` makes a request that fits the model; `openapi`, `shell_calls` and `python_calls` say it; `html` shows it; `routes` serves it.
"""
