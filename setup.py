"""Puts the recipes of the repository into the package: they stay one set of files, and pyproject.toml cannot say so."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithRecipes(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            to = Path(self.build_lib, "winml_dag", "shipped_recipes")
            shutil.copytree("recipes", to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.py", "__pycache__"))


setup(cmdclass={"build_py": WithRecipes})
