"""Lets Beam's `--setup_file` build the package; everything else is in pyproject.toml."""

from setuptools import setup

setup()
