"""`model-compiler`: see `model_compiler.command`."""

from model_compiler.command import main, run

__all__ = ["main", "run"]

if __name__ == "__main__":
    run()
