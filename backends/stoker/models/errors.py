"""`BadRequest`: a model rejects a request."""

from stoker.backends.api.errors import InvalidRequest


class BadRequest(InvalidRequest):
    """The request is wrong: the client gets the text with status 400 (gRPC: INVALID_ARGUMENT).

    Any other exception is a failure of the model.
    """
