"""The driver for a fallback list: if one vendor does not answer a message, the next vendor is
tried.

A vendor is skipped if it cannot start, is not logged in, or is rate-limited before its first
output. The frontend sees a single turn, from the vendor that answered. The rest of the conversation
stays with that vendor, because no other vendor has its history. Until a vendor has answered, each
message may be sent to every vendor in the list.
"""

import contextlib
from collections.abc import Callable

import anyio

from shim.conversation.drivers.driver import ChildDriver
from shim.conversation.fallback.buffered_stream import BufferedChildStream, FallbackOutputBuffer
from shim.conversation.fallback.chain import FallbackCandidate, FallbackChain
from shim.core.adapter.child_stream import ChildStream
from shim.core.api_errors import describe_cause
from shim.core.claude.messages import UserMessage
from shim.core.errors import NOTE_PASSED_OVER, FailedVendorAttempt
from shim.io.stderr import warn
from shim.io.stdout import FrontendDisconnectedError

# After this time a silent vendor is accepted, and no other vendor is tried. A missing login is
# reported within two seconds. A vendor that is still waiting for a rate limit is replaced.
VENDOR_TIMEOUT_S = 30.0
DRIVER_TIMEOUT_S = 90.0  # for opening the vendor's session; then the next driver is used


class FallbackDriver:
    """Runs each turn with the first candidate of a fallback chain that answers.

    `driver` is the first candidate's driver. `create_driver` creates the drivers for later
    candidates. The streams of all drivers write into `buffer`.
    """

    def __init__(
        self,
        driver: ChildDriver,
        chain: FallbackChain,
        buffer: FallbackOutputBuffer,
        create_driver: Callable[[FallbackCandidate], ChildDriver],
    ) -> None:
        self.active_child_driver = driver
        self._chain = chain
        self._create_driver = create_driver
        self._buffer = buffer
        # The stream of the last turn that the frontend has seen.
        self._last_stream: ChildStream | None = None
        self._has_answered = self._interrupted = False

    async def run_turn(self, message: UserMessage) -> None:
        """Try the candidates in order until one answers the message."""
        self._interrupted = False
        if self._has_answered:
            await self.active_child_driver.run_turn(message)
            return
        failed_attempts = list(self._chain.skipped_attempts)
        while (
            attempt := await self._ask_vendor(
                self.active_child_driver, message, tuple(failed_attempts)
            )
        ) is not None:
            failed_attempts.append(attempt)
            await self.active_child_driver.stop()
            if self._interrupted:
                await self.active_child_driver.cancel_turn(message)
                break
            self.active_child_driver = self._create_next_driver(attempt)
        driver = self.active_child_driver
        driver.launcher.resume_state.failed_attempts = ()
        self._last_stream = driver.stream
        assert self._last_stream is not None
        last_turn = self._last_stream.turn
        self._has_answered = last_turn.has_output or not last_turn.is_error
        if self._chain.is_past_first_candidate and not self._has_answered:
            await driver.stop()
            self.active_child_driver = self._prepare_driver(self._chain.select_first_candidate())

    async def _ask_vendor(
        self,
        driver: ChildDriver,
        message: UserMessage,
        failed_attempts: tuple[FailedVendorAttempt, ...],
    ) -> FailedVendorAttempt | None:
        """Run the turn with one vendor. Return the reason to try the next vendor, or None if this
        vendor answered.
        """
        driver.launcher.resume_state.failed_attempts = failed_attempts
        if not self._chain.has_next_candidate:
            await driver.run_turn(message)
            return None
        last_stream = driver.stream
        buffer = self._buffer
        buffer.start_buffering()
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._expire_vendor, driver)
            try:
                await driver.run_turn(message)
            except Exception as error:  # raised below, so that no exception group wraps it
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if buffer.failed_attempt is not None:
            self._record_failed_attempt(driver, buffer.failed_attempt)
            # If a signal arrives now, it must find a turn that has not started.
            driver.open_stream(last_stream)
        return buffer.failed_attempt

    async def _expire_vendor(self, driver: ChildDriver) -> None:
        """After a timeout, accept a silent vendor as the one that answers. A vendor that is only
        waiting for its model is abandoned instead.
        """
        timeout_s = VENDOR_TIMEOUT_S
        if self._chain.same_vendor:
            timeout_s = DRIVER_TIMEOUT_S
        await anyio.sleep(timeout_s)
        stream = driver.stream
        if not (self._buffer.is_active and isinstance(stream, BufferedChildStream)):
            return
        if cause := stream.find_timeout_cause(driver.peek_stderr()):
            name = driver.launcher.adapter.display_name
            reason_suffix = " except waiting notices"
            if self._chain.same_vendor:
                reason_suffix = ""
            driver.abandon_turn(f"{name} printed nothing for {timeout_s:g} s{reason_suffix}", cause)
            return
        with contextlib.suppress(FrontendDisconnectedError):  # the turn also detects the disconnect
            await driver.write_output_and_run_commands(*stream.release_buffered_output())

    def _record_failed_attempt(self, driver: ChildDriver, attempt: FailedVendorAttempt) -> None:
        """Write to the recording that a vendor failed to answer."""
        launcher = driver.launcher
        has_started = self._buffer.child_started
        if has_started and driver.stream is not None:
            launcher.turn_lifecycle.record_diagnostics(driver.stream)
        if launcher.recorder is not None:
            launcher.recorder.record_run_event(
                NOTE_PASSED_OVER, started=has_started, **attempt.to_json()
            )

    def _create_next_driver(self, attempt: FailedVendorAttempt) -> ChildDriver:
        """Create the driver for the next candidate. A warning on stderr names the candidate and the
        reason for the switch.
        """
        candidate = self._chain.select_next_candidate()
        adapter = candidate.launcher.adapter
        warning = ""
        if adapter.unattended:
            warning = ", which runs tools without asking"
        if self._chain.same_vendor:
            warn(
                f"{adapter.name}'s two-way mode failed ({attempt.reason}); falling back to one-way mode{warning}\n"
            )
        else:
            warn(
                f"{attempt.vendor} did not answer ({describe_cause(attempt.cause)}); "
                f"trying {adapter.name}{warning}\n"
            )
        return self._prepare_driver(candidate)

    def _prepare_driver(self, candidate: FallbackCandidate) -> ChildDriver:
        """Return a driver for the candidate. The driver continues after the last turn that the
        frontend has seen.
        """
        driver = self._create_driver(candidate)
        driver.stream = self._last_stream
        if self._last_stream is not None:
            self._last_stream.turn.conversation.vendor_session_id = None
        return driver

    async def interrupt(self) -> None:
        """Interrupt the running turn of the current candidate."""
        self._interrupted = True
        await self.active_child_driver.interrupt()
