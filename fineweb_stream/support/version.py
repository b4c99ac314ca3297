"""The package's version, and those of others."""

from __future__ import annotations

__version__ = "0.1.0"


def version_of(package: str) -> str:
    """Return a package's installed version, for the record; "unknown" if nothing says it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:  # not needed, so not installed; or copied
        return "unknown"
