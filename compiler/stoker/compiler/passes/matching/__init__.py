"""What passes that rewrite parts of a graph share: reading constants, following edges, and replacing nodes without breaking names."""
