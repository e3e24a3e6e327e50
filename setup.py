"""All about the project stands in pyproject.toml; here the optional native extension will be built, once there is one."""

from setuptools import setup

setup()
