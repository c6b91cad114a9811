"""`python -m poprt`: the command line."""

from poprt.cli import run

if __name__ == "__main__":
    run()
