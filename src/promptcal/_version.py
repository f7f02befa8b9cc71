"""The package's version, as installed."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("promptcal")
except PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0+source"
