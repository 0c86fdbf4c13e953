"""Resets blocked and ignored signals that were inherited from the parent, before any child is
started or waited for.

Launch daemons and thread pools block signals, some supervisors ignore SIGCHLD, and a shell without
job control ignores SIGINT in background jobs. The kernel keeps both states across `execve`. The
real claude resets them, too.
"""

import signal

# If SIGCHLD is ignored, the kernel reaps our children, and their exit statuses are lost. SIGALRM
# bounds a hook.
RESET_TO_DEFAULT = (signal.SIGCHLD, signal.SIGTERM, signal.SIGALRM)


def reset_inherited_signals() -> None:
    """Restore the default handlers of the signals that we need, and unblock all signals."""
    stop_ignoring_signals()
    unblock_signals()


def stop_ignoring_signals() -> None:
    """Restore the default handlers of the signals that we need.

    An ignored SIGHUP stays ignored: this is how `nohup` works.
    """
    for signal_number in RESET_TO_DEFAULT:
        if signal.getsignal(signal_number) is signal.SIG_IGN:
            signal.signal(signal_number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def unblock_signals() -> None:
    """Unblock all signals. A pending signal arrives at once, so its handler must already be set."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
