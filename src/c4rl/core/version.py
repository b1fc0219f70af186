"""The package's version, for everything that stores it with a result."""

__version__ = "0.1.0"
