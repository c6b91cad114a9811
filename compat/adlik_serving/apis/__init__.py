"""The modules of Adlik's messages and services. The messages are those of `stoker_client`, in its own descriptor pool."""
