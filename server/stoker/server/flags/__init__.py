"""The command line of `serve`: flags and environment to a `ServerConfig`.

`table.py` collects the flags of the settings, and of the groups in the other files for those that do not set one field each.
`command.py` reads the words. `help_page.py` prints the help.
"""
