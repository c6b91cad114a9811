"""The identity backend: returns its inputs."""
