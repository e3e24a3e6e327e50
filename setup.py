"""All about the project stands in pyproject.toml; an optional native extension will be built here once there is one."""

from setuptools import setup

setup()
