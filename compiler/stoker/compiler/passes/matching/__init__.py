"""The common parts of passes that rewrite a graph: reading constants, following edges, and replacing nodes without breaking names."""
