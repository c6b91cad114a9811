"""KServe v2 with Triton's extensions: codecs, the one validator, and handlers that know no transport."""
