"""Which vendors a conversation is meant for: the first place that names any (surface page, The
vendor of a turn).
"""

from collections.abc import Mapping

from shim.adapters import VENDORS
from shim.core.adapter.routing import REPLAY_PREFIX, parse_model_route, parse_vendor_list
from shim.core.claude.argv.invocation import Invocation
from shim.core.errors import FrontendError
from shim.core.reading.diagnostics import escape_control_chars
from shim.core.reading.typed import NamedTuple
from shim.io.stderr import warn
from shim.process.find_program import find_programs_on_path
from shim.state.config import get_shim_settings_path
from shim.state.own_profiles import load_valid_adapters

REPLAY_VENDOR = "replay"  # the vendor that plays recordings


class VendorChoice(NamedTuple):
    """The names of the vendors, the model without its prefix, and the place that named the vendors."""

    names: tuple[str, ...]
    model: str | None
    source: str


def choose_vendors(
    invocation: Invocation,
    installed_options: Mapping[str, str],
    environment: Mapping[str, str],
    configured_vendors: tuple[str, ...],
    *,
    session_vendor: str | None,
    cwd: str,
) -> VendorChoice:
    """The vendors of a conversation. FrontendError where no place names any.

    `configured_vendors` are those of the settings file, `session` is the vendor of the session that
    goes on.
    """
    vendor_in_model, model = parse_model_route(invocation.model, VENDORS)
    sources = (
        ("--shim-vendor", (invocation.shim_flags.shim_vendor,)),
        ("the session that goes on", (session_vendor,)),
        ("--model", (vendor_in_model,)),
        ("SHIM_VENDOR", parse_vendor_list(environment.get("SHIM_VENDOR", ""))),
        ("`shim install`", parse_vendor_list(installed_options.get("vendor", ""))),
        ("the settings file", configured_vendors),
    )
    source, names = next(
        (
            (source, names)
            for source, values in sources
            if (names := tuple(name for name in values if name))
        ),
        ("", ()),
    )
    if any(name == REPLAY_VENDOR or name.startswith(REPLAY_PREFIX) for name in names):
        names_text = escape_control_chars(",".join(names))[:60]
        raise FrontendError(
            f"{names_text!r}: a recording can be named by SHIM_VENDOR or --shim-vendor only",
            hint="SHIM_VENDOR=replay:PATH, with a cast or a directory of them",
        )
    if invocation.session.resume:
        names = names[:1]  # a session has one vendor, also one that is not known here
    if vendor_in_model is not None and (vendor_in_model,) != names:
        warn(
            f"the model {escape_control_chars(str(model))[:60]} is {vendor_in_model}'s "
            f"and is not given to {', '.join(names)}\n"
        )
        model = None
    if names:
        return VendorChoice(names, model, source)
    programs = find_programs_on_path(load_valid_adapters(), environment, cwd)
    program_list = (
        ", ".join(f"{name} ({path})" for name, path in programs.items()) or "none of those it knows"
    )
    raise FrontendError(
        "no vendor was chosen",
        hint=f"set SHIM_VENDOR, `vendor` in {get_shim_settings_path(invocation, environment)}, "
        f"or --shim-vendor; found on PATH: {program_list}",
    )
