"""What an operator sets of the HTTP port's server: plain data, no library."""

import enum


class HttpFront(enum.StrEnum):
    """The HTTP/1.1 server that hosts the application."""

    STOKER = "stoker"
    UVICORN = "uvicorn"
