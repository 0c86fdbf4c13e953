"""Formats signal names, and parses exit statuses that a person has typed."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shim.core.turn.outcome import ChildExit


def format_signal_name(signal_number: int) -> str:
    """Return the name of a signal, such as "SIGTERM" for 15. For a number without a name, return a
    text such as "signal 40".
    """
    import signal

    try:
        return signal.Signals(signal_number).name
    except ValueError:
        return f"signal {signal_number}"


def parse_exit_status(text: str) -> "ChildExit":
    """Parse an exit code, a negative signal number, or a signal name with or without SIG. Raise
    ValueError for any other text.
    """
    import signal

    from shim.core.turn.outcome import ChildExit

    if text.lstrip("-").isdigit():
        code = int(text)
        if code >= 0:
            return ChildExit(code=code)
        return ChildExit(signal=format_signal_name(-code))
    signal_name = "SIG" + text.upper().removeprefix("SIG")
    if signal_name not in signal.Signals.__members__:
        raise ValueError(f"{text!r} is neither an exit code nor the name of a signal")
    return ChildExit(signal=signal.Signals[signal_name].name)
