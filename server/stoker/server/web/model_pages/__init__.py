"""Pages about a loaded model for people: its own OpenAPI document, and calls to paste.

`samples` makes a request that fits the model, `calls` prints it as text to paste, and `documents` makes the HTML pages and OpenAPI
document.
"""
