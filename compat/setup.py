"""Puts `stoker_compat.pth` beside the packages; pyproject.toml has no field for it."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

NAME = "stoker_compat.pth"


class BuildWithPath(build_py):
    """Also copies the file that Python reads when it starts."""

    def run(self) -> None:
        super().run()
        Path(self.build_lib).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(__file__).with_name(NAME), Path(self.build_lib, NAME))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), str(Path(self.build_lib, NAME))]


setup(cmdclass={"build_py": BuildWithPath})
