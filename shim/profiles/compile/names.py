"""The names that compiled rules and tools use: nothing else is there for them."""

from typing import Any

from shim.core.claude.usage import dollars
from shim.core.reading.decode import parsed
from shim.core.vendor.tools import claude_names, translate
from shim.profiles.run import values

NOTHING: dict[str, Any] = {}  # stands for an object that is not there

NAMES: dict[str, Any] = {
    "NOTHING": NOTHING,
    "along": values.along,
    "among": values.among,
    "claude_names": claude_names,
    "captured": values.captured,
    "counted": values.counted,
    "dollars": dollars,
    "identity": values.identity,
    "joined": values.joined,
    "mapped": values.mapped,
    "multiplied": values.multiplied,
    "parsed": parsed,
    "rest": values.rest,
    "stripped": values.stripped,
    "there": values.there,
    "together": values.together,
    "total": values.total,
    "translate": translate,
    "unquoted": values.unquoted,
}
