"""A backend whose models answer a request several times, to try streaming with."""
