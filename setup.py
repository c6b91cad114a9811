"""Builds the pure wheel; with STOKER_NATIVE=1, a wheel in which mypyc has compiled the modules of native_modules.txt.

The page of the package is README.md. Its links are relative to the repository, so they are made absolute: an index has no other pages.
"""

import os
import re
import shutil
import sysconfig
import tomllib
from pathlib import Path

from setuptools import Extension, setup


def native_extensions() -> list[Extension]:
    """One shared library for all modules, and a small one for each, by its name."""
    try:
        from mypyc.build import mypycify
    except ImportError as error:
        raise SystemExit("STOKER_NATIVE=1 needs mypy in this environment: build with --no-build-isolation") from error
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        raise SystemExit(f"STOKER_NATIVE=1 needs a C compiler: there is no '{compiler}'")
    lines = Path(__file__).with_name("native_modules.txt").read_text().splitlines()
    files = [path for line in lines if (path := line.partition("#")[0].strip())]
    return mypycify(["--config-file=pyproject.toml", *files], opt_level=os.environ.get("STOKER_NATIVE_OPT", "2"), group_name="stoker")


def page() -> str:
    """README.md with absolute links to the files of this version."""
    here = Path(__file__).parent
    project = tomllib.loads((here / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def absolute(link: re.Match[str]) -> str:
        view = "raw" if link["image"] else "blob"
        return f"{link['image']}{link['text']}({project['urls']['Repository']}/{view}/v{project['version']}/{link['path']})"

    pattern = r"(?P<image>!?)(?P<text>\[[^\]]*\])\((?![a-z]+:|#)(?P<path>[^)\s]+)\)"
    return re.sub(pattern, absolute, (here / "README.md").read_text(encoding="utf-8"))


setup(
    long_description=page(),
    long_description_content_type="text/markdown",
    ext_modules=native_extensions() if os.environ.get("STOKER_NATIVE") == "1" else [],
)
