"""Common parts of the compilers for simulated devices: typed models with known shapes, and graphs with the rounding of devices."""
