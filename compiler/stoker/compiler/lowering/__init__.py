"""Common parts of the compilers for simulated devices: typed models with static shapes, and graphs with explicit device rounding."""
