"""Forms that the IPU's compiler does not take, made into others."""
