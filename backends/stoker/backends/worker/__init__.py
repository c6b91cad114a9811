"""Worker processes: a child process that owns one instance of a model, and the channel between it and the server. Needs numpy only."""
