"""HTTP: the routes of all protocols, management routes, pages and the OpenAPI document."""
