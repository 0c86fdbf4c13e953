"""The control session: the frontend's lines, and our answers."""

from shim.core.claude.control.session import ControlSession

__all__ = ["ControlSession"]
