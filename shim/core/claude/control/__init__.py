"""The frontend's side of a conversation: its lines in, our answers out."""

from shim.core.claude.control.session import ControlSession

__all__ = ["ControlSession"]
