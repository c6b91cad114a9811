"""Plain data that every room shares: requests, model configuration, states, statistics snapshots. No I/O."""
