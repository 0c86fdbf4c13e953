"""Chooses the vendors of a conversation, and selects one that can start."""

import os
from collections.abc import Mapping, Sequence

from shim.adapters import VENDORS, get_adapter
from shim.core.adapter.adapter import Adapter
from shim.core.claude.argv.flags import Invocation
from shim.core.claude.argv.models import (
    REPLAY_PREFIX,
    is_claude_model,
    parse_model_route,
    parse_vendor_list,
)
from shim.core.dialects import DIALECTS
from shim.core.errors import (
    NOTE_PASSED_OVER,
    FailedVendorAttempt,
    FrontendError,
    UnsupportedPermissionModeError,
    VendorError,
    create_failed_vendor_attempt,
)
from shim.core.reading.typed import TYPE_CHECKING, NamedTuple
from shim.core.reading.values import escape_control_chars
from shim.io.stderr import warn
from shim.process.find_program import find_program, find_programs_on_path, resolve_command_prefix
from shim.state.config import ShimSettings, get_shim_settings_path
from shim.state.own_profiles import load_valid_adapters

if TYPE_CHECKING:
    from shim.recording.recorder import RunRecorder
    from shim.recording.selection import RecordingSet
    from shim.state.store import StoredSession

REPLAY_VENDOR = "replay"  # the vendor that replays recordings
MAX_VENDORS = 8  # in one list; each vendor may take time before the next one is tried
# These variables configure a single program. In a list they apply only to the first vendor.
FIRST_VENDOR_VARIABLES = ("SHIM_BIN", "SHIM_ARGS")


class ResolvedVendors(NamedTuple):
    """The vendors' names, the model name without its vendor prefix, and the source of the names."""

    names: tuple[str, ...]
    model: str | None
    source: str


def find_replay_path(invocation: Invocation, environment: Mapping[str, str]) -> str | None:
    """Return the path of the recordings to replay instead of running a vendor. Return None if
    neither a flag nor a variable requests a replay.

    A replay path in the environment takes precedence over the vendor of a resumed session or of a
    model name, so that no vendor runs.
    """
    vendor_name = invocation.shim_vendor
    if not vendor_name:
        vendor_name = environment.get("SHIM_VENDOR")
    if not vendor_name:
        vendor_name = ""
    if vendor_name.startswith(REPLAY_PREFIX):
        return vendor_name[len(REPLAY_PREFIX) :]
    return None


def resolve_vendor_names(
    invocation: Invocation,
    installed_options: Mapping[str, str],
    environment: Mapping[str, str],
    configured_vendors: tuple[str, ...],
    *,
    session_vendor: str | None,
    cwd: str,
) -> ResolvedVendors:
    """Return the vendors from the first source that names any: a flag, the resumed session, the
    model, the environment, the installation or the settings file. Raise FrontendError if no source
    names a vendor.

    `configured_vendors` are the vendors in the settings file. `session_vendor` is the vendor of the
    resumed session.
    """
    vendor_in_model, model = parse_model_route(invocation.model, VENDORS)
    sources = (
        ("--shim-vendor", (invocation.shim_vendor,)),
        ("the resumed session", (session_vendor,)),
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
            f"{names_text!r}: a recording can be chosen only with SHIM_VENDOR or --shim-vendor",
            hint="set SHIM_VENDOR=replay:PATH, with a recording or a directory of recordings",
        )
    if invocation.resume:
        names = names[:1]  # a resumed session has a single vendor, whose name may be unknown
    if vendor_in_model is not None and (vendor_in_model,) != names:
        warn(
            f"the model {escape_control_chars(str(model))[:60]} belongs to "
            f"{vendor_in_model} and is not passed to {', '.join(names)}\n"
        )
        model = None
    if names:
        return ResolvedVendors(names, model, source)
    programs = find_programs_on_path(load_valid_adapters(), environment, cwd)
    program_list = ", ".join(f"{name} ({path})" for name, path in programs.items())
    if not program_list:
        program_list = "none"
    raise FrontendError(
        "no vendor is set",
        hint=f"set SHIM_VENDOR, `vendor` in {get_shim_settings_path(invocation, environment)}, "
        f"or --shim-vendor; found on PATH: {program_list}",
    )


class FallbackVendorList:
    """The vendors of a conversation, in the order in which they are tried.

    Raise FrontendError for an unknown vendor name, and for too many names.

        has_several       there is more than one vendor
        is_translated     all output is translated, even a real claude's, because another vendor may
                          take over
        skipped_attempts  the vendors that cannot start, with the reasons
        remaining_names   the names of the remaining vendors, in order
    """

    def __init__(
        self,
        vendor_names: Sequence[str],
        settings: ShimSettings,
        environment: Mapping[str, str],
        *,
        cwd: str,
        is_flat: bool,
        needs_prompts: bool,
    ) -> None:
        """Create the list.

        `is_flat` means that the frontend does not read Claude's stream-json. `needs_prompts` means
        that each tool call must wait for the frontend's answer (Yume).
        """
        self._vendor_names = tuple(dict.fromkeys(vendor_names))
        self._settings = settings
        self._environment = environment
        self._cwd = cwd
        self._needs_prompts = needs_prompts
        self.has_several = len(self._vendor_names) > 1
        self.is_translated = is_flat or self.has_several
        self.skipped_attempts: list[FailedVendorAttempt] = []
        self.remaining_names = self._vendor_names
        if len(self._vendor_names) > MAX_VENDORS:
            raise FrontendError(
                f"the list has {len(self._vendor_names)} vendors; at most {MAX_VENDORS} are allowed"
            )
        for name in self._vendor_names if self.has_several else ():
            if name not in VENDORS:
                get_adapter(name)

    def select_first_usable_adapter(self, mode: str) -> Adapter:
        """Return the adapter of the first vendor that can start in a permission mode. If no vendor
        can start, return the last vendor's adapter, whose turn reports the reason.

        An empty mode is not checked, because the frontend can still choose a permission mode.
        """
        while len(self.remaining_names) > 1:
            adapter = get_adapter(self.remaining_names[0], without_passthrough=True)
            try:
                self._check_adapter(adapter, mode)
                break
            except (VendorError, UnsupportedPermissionModeError) as error:
                self.skipped_attempts.append(
                    create_failed_vendor_attempt(adapter.name, error.cause, str(error))
                )
                self.remaining_names = self.remaining_names[1:]
        adapter = get_adapter(self.remaining_names[0], without_passthrough=self.is_translated)
        if not self.has_several:
            self.require_permission_prompts(adapter)
        return adapter

    def _check_adapter(self, adapter: Adapter, mode: str) -> None:
        """Check whether a vendor can start. Raise VendorError or UnsupportedPermissionModeError if
        it certainly cannot.
        """
        if mode:
            adapter.resolve_permission_mode_args(mode)
        self.require_permission_prompts(adapter)
        vendor_settings = self._settings.get_vendor_settings(adapter.name)
        resolve_command_prefix(vendor_settings.launcher, self._environment, self._cwd)
        if not adapter.cli.bundled_module:
            find_program(adapter, vendor_settings, self.build_environment(adapter.name), self._cwd)

    def require_permission_prompts(self, adapter: Adapter) -> None:
        """Raise UnsupportedPermissionModeError if each tool call must wait for an answer, but the
        vendor never asks for permission.
        """
        if self._needs_prompts:
            adapter.require_permission_prompts()

    def build_environment(self, name: str) -> Mapping[str, str]:
        """Build the environment variables for finding and starting one vendor of the list."""
        if name == self._vendor_names[0] or not any(
            key in self._environment for key in FIRST_VENDOR_VARIABLES
        ):
            return self._environment
        return {
            key: value
            for key, value in self._environment.items()
            if key not in FIRST_VENDOR_VARIABLES
        }

    def select_vendor_model(self, name: str, model: str | None) -> str | None:
        """Return the model for a vendor, or None for the vendor's default model.

        A vendor-specific model name applies only to the first vendor in the list. One of Claude's
        model names applies to every vendor.
        """
        if name == self._vendor_names[0] or (model and is_claude_model(model)):
            return model
        return None


class VendorSelection(NamedTuple):
    """The vendors of a conversation, and the data that determined the choice."""

    resolved_vendors: ResolvedVendors
    vendor_list: FallbackVendorList
    resumed_id: str | None
    resumed_session: "StoredSession | None"
    recordings: "RecordingSet | None"

    def select_adapter(self, prompt: str | None, mode: str) -> Adapter:
        """Return the first vendor that can start in a permission mode, or the adapter that replays
        recordings. An empty mode is not checked.
        """
        if self.recordings is None:
            return self.vendor_list.select_first_usable_adapter(mode)
        session = self.resumed_session
        vendor_session = ""
        if session is not None and session.vendor == REPLAY_VENDOR:
            vendor_session = session.vendor_session
        return self.recordings.create_replay_adapter(
            prompt, vendor_session, without_passthrough=self.vendor_list.is_translated
        )


def select_vendors(
    invocation: Invocation, installed: Mapping[str, str], settings: ShimSettings, cwd: str
) -> VendorSelection:
    """Choose the vendors of a conversation. A resumed session is limited to one vendor, and a
    replay replaces all vendors.
    """
    environment = os.environ
    shim_vendor = invocation.shim_vendor
    recordings = None
    if (replay_path := find_replay_path(invocation, environment)) is not None:
        from shim.recording.selection import RecordingSet

        recordings = RecordingSet(replay_path, cwd, environment)
    if recordings is None:
        vendor_name = shim_vendor
    else:
        vendor_name = REPLAY_VENDOR
    resumed_id = resumed_session = None
    if invocation.resume or invocation.continue_last:
        from shim.conversation.resumed_session import resolve_resumed_session

        resumed_id, resumed_session = resolve_resumed_session(
            invocation, vendor_name, cwd, environment
        )
    if recordings is None:
        session_vendor = None
        if resumed_session:
            session_vendor = resumed_session.vendor
        resolved_vendors = resolve_vendor_names(
            invocation,
            installed,
            environment,
            settings.vendor,
            session_vendor=session_vendor,
            cwd=cwd,
        )
    else:
        model = parse_model_route(invocation.model, VENDORS).model
        source = "SHIM_VENDOR"
        if shim_vendor:
            source = "--shim-vendor"
        resolved_vendors = ResolvedVendors((REPLAY_VENDOR,), model, source)
    is_flat = DIALECTS[settings.dialect].is_flat
    vendor_list = FallbackVendorList(
        resolved_vendors.names,
        settings,
        environment,
        cwd=cwd,
        is_flat=is_flat,
        needs_prompts=is_flat and invocation.permission_prompt_tool == "stdio",
    )
    return VendorSelection(resolved_vendors, vendor_list, resumed_id, resumed_session, recordings)


def report_skipped_vendors(vendor_list: FallbackVendorList, recorder: "RunRecorder | None") -> None:
    """Warn about listed vendors that cannot start."""
    if not vendor_list.skipped_attempts:
        return
    from shim.core.api_errors import describe_cause

    for attempt in vendor_list.skipped_attempts:
        warn(
            f"{attempt.vendor} cannot answer ({describe_cause(attempt.cause)}): {attempt.reason}\n"
        )
        if recorder is not None:
            recorder.record_run_event(NOTE_PASSED_OVER, started=False, **attempt.to_json())
