"""Finds the program of a conversation's vendor, and checks its version and its flags."""

import sys
from collections.abc import Mapping
from functools import cache

from shim.conversation.drivers.context import ConversationContext
from shim.core.adapter.adapter import LaunchRequest
from shim.core.adapter.versions import VersionCheck
from shim.core.reading.typed import TYPE_CHECKING
from shim.process.find_program import find_program, resolve_command_prefix, runs_bundled_program
from shim.state.stored_versions import find_executed_denied_call, find_stored_vendor_version

if TYPE_CHECKING:
    from shim.process.probe import ProgramProbe


class VendorProgram:
    """A vendor's program. `environment` holds the environment variables for its children."""

    def __init__(
        self,
        context: ConversationContext,
        environment: Mapping[str, str],
        *,
        uses_remembered_help: bool,
    ) -> None:
        self._context = context
        self._environment = environment
        # a command before the program; it may run the program on another machine
        self.command_prefix: list[str] = []
        self._program_argv: list[str] = []
        self._variant: str | None = None
        self._uses_remembered_help = uses_remembered_help  # use cached help texts only
        self.last_probe: ProgramProbe | None = None

    def locate_program(self) -> None:
        """Find the program, unless it was found before. Raise VendorError if the program is
        missing, and FrontendError for an error in the settings.
        """
        context = self._context
        if not self._program_argv:
            self.command_prefix = resolve_command_prefix(
                context.vendor_settings.launcher, context.environment, context.cwd
            )
            if runs_bundled_program(context.adapter, context.environment):
                self._program_argv = [
                    sys.executable,
                    "-I",
                    "-m",
                    context.adapter.cli.bundled_module,
                ]
            else:
                self._program_argv = [
                    find_program(
                        context.adapter, context.vendor_settings, context.environment, context.cwd
                    )
                ]

    @property
    def argv(self) -> list[str]:
        """The command prefix and the program, without further arguments."""
        return [*self.command_prefix, *self._program_argv]

    @property
    def _command(self) -> list[str]:
        """The command prefix and the program, without the module of a bundled program."""
        return [*self.command_prefix, self._program_argv[0]]

    def add_program_details_to_request(self, request: LaunchRequest) -> LaunchRequest:
        """Return the launch request with the program's variant and a check for supported flags.
        Raise FrontendError if the settings name an unknown variant.
        """
        adapter = self._context.adapter
        cached_probe = cache(self.create_probe)
        if self._variant is None:
            self._variant = self._context.vendor_settings.variant
            if adapter.cli.variants and self._variant not in ("auto", *adapter.cli.variants):
                keys = ("vendors", adapter.name, "variant")
                allowed = ("auto", *adapter.cli.variants)
                raise self._context.settings.create_invalid_value_error(
                    keys, allowed, self._variant
                )
            if adapter.cli.variants and self._variant == "auto":
                self._variant = adapter.detect_variant(cached_probe().get_help_text())
        return request._replace(
            variant=self._variant, has_flag=lambda flag: cached_probe().accepts_flag(flag)
        )

    def check_version(self) -> VersionCheck:
        """Check whether the guarantees of the vendor's profile hold for the installed version.

        Every start of a child waits for this check. Therefore a known version is read from a small
        file. The program is asked for its version only if this file is missing or the program has
        changed.
        """
        context = self._context
        adapter = context.adapter
        if adapter.cli.replayed_vendor:
            return VersionCheck()
        version = find_stored_vendor_version(
            adapter.version_probe, self._command, context.environment
        )
        if self._has_trusted_versions or not adapter.version_probe.tested_range:
            version_check = VersionCheck(version)
        elif version:
            version_check = adapter.version_probe.check_version(adapter.name, version)
        else:
            version_check = self._ask_version()
        denied_call = find_executed_denied_call(
            adapter.name, version_check.version, context.environment
        )
        if denied_call is None:
            return version_check
        from shim.core.adapter.untrusted_versions import (
            describe_executed_denied_call,
            mark_version_distrusted,
        )

        return mark_version_distrusted(
            version_check,
            describe_executed_denied_call(adapter, version_check.version, denied_call.tool),
        )

    @property
    def _has_trusted_versions(self) -> bool:
        """Whether every version is trusted: the user has declared that, or the program is the
        shim's own.
        """
        context = self._context
        if context.vendor_settings.trust_version:
            return True
        return runs_bundled_program(context.adapter, context.environment)

    def _ask_version(self) -> VersionCheck:
        """Ask the program for its version, and check the version. If the program may not be started,
        an unknown version is assumed to be tested.
        """
        from shim.process.probe import VERSION_TIMEOUT_S, ProgramProbe

        adapter = self._context.adapter
        version_probe = adapter.version_probe
        probe = ProgramProbe(
            self._command,
            self._context.environment,
            self._environment,
            VERSION_TIMEOUT_S,
            cache_only=self._uses_remembered_help,
        )
        version = probe.ask_version(version_probe)
        if version is None and probe.is_answer_missing:
            return VersionCheck(note="not cached; a turn reads it from the program first")
        return version_probe.check_version(
            adapter.name, version, probe.describe_version_failure(version_probe)
        )

    def create_probe(self) -> "ProgramProbe":
        """Create a probe that asks the program for its help text."""
        from shim.process.probe import ProgramProbe

        self.last_probe = ProgramProbe(
            self._command,
            self._context.environment,
            self._environment,
            cache_only=self._uses_remembered_help,
        )
        return self.last_probe
