"""The command `enkbayes`."""

from enkbayes.cli.app import app, main

__all__ = ["app", "main"]
