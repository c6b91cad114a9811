"""`model-compiler`: see `compiler.model_compiler.command`."""

from compiler.model_compiler.command import main, run

__all__ = ["main", "run"]

if __name__ == "__main__":
    run()
