"""`stoker add`: converts a model file where that is needed, compares the result with its source, and writes it into a model repository."""
