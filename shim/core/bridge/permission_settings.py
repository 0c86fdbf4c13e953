"""The permission mode and the rules that the hub sends to the conversation for all clients."""

from collections.abc import Mapping
from typing import Any

from shim.core.bridge.hub import SessionHub
from shim.core.bridge.requests import ControlRequest, HookRegistrationChange
from shim.core.bridge.restrictions import NO_RULES, RestrictionChange

MODE_SUBTYPE, SETTINGS_SUBTYPE = "set_permission_mode", "apply_flag_settings"
NO_FIELDS: Mapping[str, Any] = {}


def send_mode_to_conversation(
    hub: SessionHub, request: ControlRequest, body: Mapping[str, Any] = NO_FIELDS
) -> None:
    """Send the mode that applies. Raise FrameRefusedError as `send_control_request` does."""
    mode = hub.restrictions.effective_permission_mode
    hub.send_control_request({**body, "subtype": MODE_SUBTYPE, "mode": mode}, request)
    hub.restrictions.record_sent_mode(mode)


def send_rules_to_conversation(
    hub: SessionHub, request: ControlRequest, settings: Mapping[str, Any] = NO_FIELDS
) -> None:
    """Send the rules of all clients, with other settings. Raise FrameRefusedError as
    `send_control_request` does.

    A conversation that was never sent rules gets none.
    """
    rules = hub.restrictions.combined_permission_rules
    permissions = {}
    if rules != NO_RULES or hub.restrictions.sent_rules != NO_RULES:
        deny, ask = rules
        permissions = {"permissions": {"deny": deny, "ask": ask}}
    hub.send_control_request(
        {"subtype": SETTINGS_SUBTYPE, "settings": {**settings, **permissions}}, request
    )
    hub.restrictions.record_rules_sent_to_conversation(rules)


def send_changed_permission_settings(hub: SessionHub) -> None:
    """Send the mode and the rules that apply, as far as they differ from what was sent."""
    restrictions = hub.restrictions
    if restrictions.effective_permission_mode != restrictions.sent_mode:
        send_mode_to_conversation(hub, ControlRequest(None, "", MODE_SUBTYPE))
    if restrictions.combined_permission_rules != restrictions.sent_rules:
        send_rules_to_conversation(hub, ControlRequest(None, "", SETTINGS_SUBTYPE))


def lift_disconnected_client_restrictions(hub: SessionHub) -> None:
    """Lift the restrictions of the clients that have left, once no turn runs and no message waits
    that was accepted under them.
    """
    if hub.is_busy:
        return
    if hub.restrictions.lift_restrictions_of_left_clients():
        send_changed_permission_settings(hub)


def record_reported_permission_mode(hub: SessionHub, mode: str) -> None:
    """Record the mode that the conversation reports.

    The agent has chosen a mode that the hub did not send.
    """
    hub.session = hub.session._replace(mode=mode)
    is_pending = hub.control_requests.has_pending_subtype(MODE_SUBTYPE)
    if mode != hub.restrictions.sent_mode and not is_pending:
        hub.restrictions.set_chosen_mode(mode)
        hub.restrictions.record_sent_mode(mode)
        send_changed_permission_settings(hub)


def roll_back_refused_control_request(hub: SessionHub, request: ControlRequest) -> None:
    """Undo what a request changed in the hub, because the conversation refused it."""
    change = request.change
    if isinstance(change, HookRegistrationChange):
        hub.callbacks.restore_hooks(change)
    elif isinstance(change, RestrictionChange):
        is_connected = change.client_number in hub.subscribers.clients
        hub.restrictions.roll_back(change, is_connected=is_connected)
        if request.subtype == MODE_SUBTYPE:
            hub.restrictions.record_sent_mode(None)
        else:
            hub.restrictions.record_rules_sent_to_conversation(None)
        send_changed_permission_settings(hub)
