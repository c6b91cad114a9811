"""HTTP/1.1: connections under their bounds, the infer route straight from its bytes, all other routes through FastAPI."""
