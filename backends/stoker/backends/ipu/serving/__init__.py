"""Serving PopEF files: what they offer to clients, the simulated IPUs that run them, and the instances in front of both."""
