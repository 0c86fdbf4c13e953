"""What the clients of a session forbid while they are connected, and the mode that was chosen."""

from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple

from shim.core.policy.settings import rank_permission_mode

PermissionRules = tuple[tuple[str, ...], tuple[str, ...]]  # the rules that deny, and that ask
NO_RULES: PermissionRules = ((), ())


class ClientRestrictions(NamedTuple):
    """What one client forbids beyond the session: all modes wider than `mode`, and calls."""

    mode: str = ""  # "" forbids no mode
    deny: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()

    def combine(self, other: "ClientRestrictions") -> "ClientRestrictions":
        """Return what either of the two forbids."""
        modes = [mode for mode in (self.mode, other.mode) if mode]
        return ClientRestrictions(
            find_strictest_mode(modes) if modes else "",
            tuple(dict.fromkeys((*self.deny, *other.deny))),
            tuple(dict.fromkeys((*self.ask, *other.ask))),
        )


NO_RESTRICTIONS = ClientRestrictions()


class RestrictionChange(NamedTuple):
    """A change that takes effect at once, and is rolled back if the conversation refuses it."""

    client_number: int
    channel: str
    previous: ClientRestrictions
    current: ClientRestrictions
    previous_mode: str
    chosen_mode: str | None  # the new chosen mode; None if the change chooses none


def find_strictest_mode(modes: Iterable[str]) -> str:
    """Return the mode that allows least."""
    return min(modes, key=rank_permission_mode)


class CombinedClientRestrictions:
    """The restrictions of all clients, and the chosen mode.

    A client can bring restrictions through several channels. Those of all channels and clients
    apply at once. The restrictions of a client that has left apply until its turns and its waiting
    messages are done, because they were accepted under these restrictions.

    `chosen_mode` is the mode without any restriction. `sent_mode` and `sent_rules` are what the
    conversation was last sent, or None if it may have other ones.
    """

    def __init__(self, mode: str) -> None:
        self.chosen_mode = mode
        self.sent_mode: str | None = mode
        self.sent_rules: PermissionRules | None = NO_RULES
        self._previous_modes: dict[str, str] = {}  # a refused mode -> the mode chosen before it
        self._by_client: dict[tuple[int, str], ClientRestrictions] = {}
        self._of_left_clients = NO_RESTRICTIONS

    @property
    def effective_permission_mode(self) -> str:
        """Return the mode that applies: the strictest of the chosen mode and the restrictions."""
        return find_strictest_mode(mode for mode in (self.chosen_mode, self._combined.mode) if mode)

    @property
    def combined_permission_rules(self) -> PermissionRules:
        """Return the rules of all clients."""
        combined = self._combined
        return combined.deny, combined.ask

    @property
    def _combined(self) -> ClientRestrictions:
        return reduce(ClientRestrictions.combine, self._by_client.values(), self._of_left_clients)

    def get_restrictions(self, client_number: int, channel: str) -> ClientRestrictions:
        """Return what a client brought through a channel."""
        return self._by_client.get((client_number, channel), NO_RESTRICTIONS)

    def set_restrictions(
        self, client_number: int, channel: str, restrictions: ClientRestrictions
    ) -> None:
        """Replace what a client brought through a channel."""
        self._by_client[client_number, channel] = restrictions

    def allows_mode(self, excluded_client_number: int | None, mode: str) -> bool:
        """Return whether the restrictions of all clients but one allow a mode."""
        others = [self._of_left_clients]
        for (client_number, _), restrictions in self._by_client.items():
            if client_number != excluded_client_number:
                others.append(restrictions)
        return find_strictest_mode([mode, *(other.mode for other in others if other.mode)]) == mode

    def set_chosen_mode(self, mode: str) -> None:
        """Choose a mode."""
        self._previous_modes.pop(mode, None)
        self.chosen_mode = mode

    def apply_change(
        self,
        client_number: int,
        channel: str,
        restrictions: ClientRestrictions,
        chosen_mode: str | None = None,
    ) -> RestrictionChange:
        """Replace what a client brought through a channel, and choose a mode. Return the change."""
        change = RestrictionChange(
            client_number,
            channel,
            self.get_restrictions(client_number, channel),
            restrictions,
            self.chosen_mode,
            chosen_mode,
        )
        if chosen_mode is not None:
            self.set_chosen_mode(chosen_mode)
        self.set_restrictions(client_number, channel, restrictions)
        return change

    def roll_back(self, change: RestrictionChange, *, is_connected: bool) -> None:
        """Undo a refused change, but keep what was changed again after it.

        The restrictions of a client that has left stay as they are (`is_connected`).
        """
        if change.chosen_mode not in (None, change.previous_mode):
            self._roll_back_refused_mode(change.chosen_mode, change.previous_mode)
        current = self.get_restrictions(change.client_number, change.channel)
        if is_connected and current == change.current:
            self.set_restrictions(change.client_number, change.channel, change.previous)

    def _roll_back_refused_mode(self, refused_mode: str, previous_mode: str) -> None:
        """Return to the last accepted mode if the chosen mode was refused."""
        self._previous_modes[refused_mode] = previous_mode
        while self.chosen_mode in self._previous_modes:
            self.chosen_mode = self._previous_modes.pop(self.chosen_mode)

    def record_sent_mode(self, mode: str | None) -> None:
        """Record the mode that the conversation was sent, or None if it may have another one."""
        self.sent_mode = mode

    def record_rules_sent_to_conversation(self, rules: PermissionRules | None) -> None:
        """Record the rules that the conversation was sent, or None if it may have other ones."""
        self.sent_rules = rules

    def remove_client(self, client_number: int) -> None:
        """Keep the restrictions of a client that has left apart."""
        for key in [key for key in self._by_client if key[0] == client_number]:
            self._of_left_clients = self._of_left_clients.combine(self._by_client.pop(key))

    def lift_restrictions_of_left_clients(self) -> bool:
        """Lift the restrictions of the clients that have left. Return whether there were any."""
        lifted = self._of_left_clients
        self._of_left_clients = NO_RESTRICTIONS
        return lifted != NO_RESTRICTIONS
