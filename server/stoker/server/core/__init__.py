"""Plain data that all packages share: requests, model configuration, states, statistics snapshots. No I/O."""
