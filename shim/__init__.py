"""A stand-in for the `claude` binary: any agent CLI, said again as Claude's stream-json."""

__version__ = "0.1.0"
