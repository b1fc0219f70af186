"""The package's version: pyproject.toml reads it here, and so does everything that stores it with a result."""

__version__ = "0.1.0"
