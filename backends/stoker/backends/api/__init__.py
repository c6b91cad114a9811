"""The waist: what a backend and the server agree on. Standard library and numpy only; imports nobody, imported by everyone."""
