"""`python -m model_compiler`: the command."""

from compiler.model_compiler.command import run

if __name__ == "__main__":
    run()
