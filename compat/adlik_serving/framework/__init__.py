"""Package of Adlik's model messages."""
