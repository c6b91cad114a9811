"""The command line of `serve`: flags, environment and configuration file to a `ServerConfig`.

`table.py` collects the flags of the settings, and of the groups in the other files for those that do not set one field each.
`command.py` reads the words, `config_file.py` the file of `--config`. `help_page.py` prints the help, `completion.py` the scripts of
shells.
"""
