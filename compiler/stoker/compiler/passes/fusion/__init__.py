"""Several nodes made one."""
