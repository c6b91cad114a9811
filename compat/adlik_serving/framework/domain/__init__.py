"""Where Adlik keeps its models' messages."""
