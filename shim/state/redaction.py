"""Functions that blank secrets in data beside the stream; None where secrets may stay."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from shim.state.config import Settings

if TYPE_CHECKING:
    from shim.core.secrets.redactor import RedactedTail, Stream


def of_messages(settings: Settings) -> Callable[[object], object] | None:
    """For messages that are kept."""
    if settings.redaction() != "all":
        return None
    from shim.core.secrets.redactor import Redactor

    return Redactor().value


def of_stream(settings: Settings) -> "Stream | None":
    """For a stderr that is passed on."""
    if settings.redaction() != "all":
        return None
    from shim.core.secrets.redactor import Stream

    return Stream({})


def of_tail(settings: Settings) -> "RedactedTail | None":
    """For the end of a stderr that an error quotes."""
    if settings.redaction() != "all":
        return None
    from shim.core.secrets.redactor import RedactedTail

    return RedactedTail()
