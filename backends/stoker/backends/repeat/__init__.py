"""A backend whose models return several responses to a request, to test streaming."""
