"""Self-contained HTML pages with plots, without scripts and network access, with light and dark colours."""
