"""stoker_client."""
