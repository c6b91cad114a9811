"""Controllers that adapt performance settings to measurements. `--tuning=off` replaces each by a fixed setting."""
