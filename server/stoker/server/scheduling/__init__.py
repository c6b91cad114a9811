"""Scheduling: the queue, the batcher (both pure), and the scheduler that drives them on the event loop."""
