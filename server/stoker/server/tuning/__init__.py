"""Controllers that tune performance by what they measure. `--tuning=off` replaces each by a fixed behaviour."""
