"""The wire protocols: KServe v2 with Triton's extensions, TensorFlow Serving, Adlik."""
