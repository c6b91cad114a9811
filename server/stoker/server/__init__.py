"""The model server: fronts, engine, lifecycle, scheduling, execution."""
