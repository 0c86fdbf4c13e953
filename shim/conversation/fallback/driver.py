"""Several vendors for one conversation: if one vendor does not answer, the next one is asked.

A vendor passes the message on if it cannot start, is not logged in or is rate-limited before its
first output. The frontend sees one turn, from the vendor that answered. After that the conversation
belongs to this vendor, because no other vendor knows it. Until then each message may be sent to all
vendors of the list.
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

# After this time the vendor is accepted, and no other vendor is asked. A missing login shows within
# two seconds. A vendor that still waits for a rate limit then is replaced.
VENDOR_TIMEOUT_S = 30.0
DRIVER_TIMEOUT_S = 90.0  # for a vendor to open its session; then another driver is used


class FallbackDriver:
    """Drives the vendor that answers. `driver` is the driver of the first candidate;
    `create_driver` creates the others. Their streams write into `buffer`.
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
        """Ask one vendor after another, until one answers."""
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
        """Ask one vendor. Return the reason to ask another one, or None if this vendor has
        answered.
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
            except Exception as error:  # raised below, so that it is not wrapped in a group
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if buffer.failed_attempt is not None:
            self._record_failed_attempt(driver, buffer.failed_attempt)
            # A signal that arrives now finds a turn that has not started.
            driver.open_stream(last_stream)
        return buffer.failed_attempt

    async def _expire_vendor(self, driver: ChildDriver) -> None:
        """Accept a vendor that has been silent for long as the one that answers, unless it only
        waits for its model.
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
            reason_suffix = " except that it is waiting"
            if self._chain.same_vendor:
                reason_suffix = ""
            driver.abandon_turn(f"{name} printed nothing for {timeout_s:g} s{reason_suffix}", cause)
            return
        with contextlib.suppress(FrontendDisconnectedError):  # the turn detects it too
            await driver.write_output_and_run_commands(*stream.release_buffered_output())

    def _record_failed_attempt(self, driver: ChildDriver, attempt: FailedVendorAttempt) -> None:
        """Record that a vendor did not answer."""
        launcher = driver.launcher
        has_started = self._buffer.child_started
        if has_started and driver.stream is not None:
            launcher.turn_lifecycle.record_diagnostics(driver.stream)
        if launcher.recorder is not None:
            launcher.recorder.record_run_event(
                NOTE_PASSED_OVER, started=has_started, **attempt.to_json()
            )

    def _create_next_driver(self, attempt: FailedVendorAttempt) -> ChildDriver:
        """Create the driver of the next vendor, and report on stderr which vendor is asked and why."""
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
        """Return the driver of another vendor. It continues after the last turn that the frontend
        has seen.
        """
        driver = self._create_driver(candidate)
        driver.stream = self._last_stream
        if self._last_stream is not None:
            self._last_stream.turn.conversation.vendor_session_id = None
        return driver

    async def interrupt(self) -> None:
        """Interrupt the turn of the vendor that is asked."""
        self._interrupted = True
        await self.active_child_driver.interrupt()
