"""What compilers for simulated devices share: converted models with every type and shape known, and their graphs as devices round them."""
