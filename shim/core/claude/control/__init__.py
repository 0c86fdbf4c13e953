"""The control session: lines from the frontend, and the shim's responses."""

from shim.core.claude.control.session import ControlSession

__all__ = ["ControlSession"]
