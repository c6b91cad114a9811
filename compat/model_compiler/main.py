"""`model-compiler`: see `stoker.compiler.model_compiler.command`."""

from stoker.compiler.model_compiler.command import main, run

__all__ = ["main", "run"]

if __name__ == "__main__":
    run()
