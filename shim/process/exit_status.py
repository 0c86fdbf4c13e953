"""How a process ended, in words."""


def signal_name(number: int) -> str:
    """SIGTERM for 15; the number itself for one without a name."""
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
