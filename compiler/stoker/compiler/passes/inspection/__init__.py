"""Passes that look, check, and expose or drop outputs."""
