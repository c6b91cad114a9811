"""The console at /ui: a page that shows what the server does, tries models and controls them.

`assets` serves the page and its scripts, `feed` and `events` send state and load, `model_document` and `calls` describe one model, and
`routes` declares the routes.
"""
