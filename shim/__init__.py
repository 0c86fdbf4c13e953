"""A replacement for the `claude` binary: it runs any agent CLI and translates its output to
Claude's stream-json.
"""

__version__ = "0.1.0"
