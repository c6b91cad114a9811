"""The response cache: keys of requests, and the stores that hold responses."""
