"""`python -m model_compiler`: the command."""

from model_compiler.command import run

if __name__ == "__main__":
    run()
