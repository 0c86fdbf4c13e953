"""Who answers in a turn, and its first line, `init`."""

from collections.abc import Callable, Mapping
from typing import Any

from shim.core.claude.messages import TEXT_ONLY_KINDS, BlockKinds, UserMessage
from shim.core.policy.policy import STRUCTURED_OUTPUT_TOOL
from shim.core.policy.rules import normalize_tool_name
from shim.core.reading.diagnostics import Diagnostics
from shim.core.reading.ids import canonicalize_uuid
from shim.core.turn.assistant_message import SYNTHETIC_MODEL, AssistantMessage
from shim.core.turn.context import MAX_NAME_CHARS
from shim.core.turn.turn_context import TurnContext

# What a fact must be to be believed: it goes into the init line, and some clients end on another
# type there.
INFO_TYPES: dict[str, type] = {
    **dict.fromkeys(("cwd", "model", "mode", "key_source", "vendor_version"), str),
    **dict.fromkeys(("tools", "mcp_servers", "slash_commands", "agents"), list),
}
ITEM_TYPES: dict[str, type] = {
    "tools": str,
    "slash_commands": str,
    "agents": str,
    "mcp_servers": dict,
}


class TurnStart:
    """What is known of the vendor before it says anything, and the message that the turn answers."""

    def __init__(self, context: TurnContext, assistant_message: AssistantMessage) -> None:
        self._context = context
        self._writer = context.writer
        self._conversation = context.conversation
        self._sanitizer = context.sanitizer
        self._assistant_message = assistant_message
        self.config = context.config
        self.vendor_info: dict[str, Any] = {}
        self.user_message: UserMessage | None = None
        # what the vendor is given of a message beside its text
        self.get_accepted_kinds: Callable[[], BlockKinds] = lambda: TEXT_ONLY_KINDS
        # said to the vendor in the middle of the turn
        self.steering_messages: list[UserMessage] = []
        self.written_count = 0  # how many of them a reply has followed
        self.new_steering_messages: list[UserMessage] = []  # those since the shell has looked
        self.replays_message = False  # the message is said again behind the init line

    def set_vendor_session(
        self, session_id: str, diagnostics: Diagnostics, *, is_closed: bool
    ) -> None:
        """The vendor named its session."""
        conversation = self._conversation
        if conversation.vendor_session_id not in (None, session_id):
            diagnostics.record("session_id_changed", session_id)
            if self.config.can_retry and not is_closed:
                self._change_session_id(session_id)
        conversation.vendor_session_id = session_id

    def update_vendor_info(self, info: Mapping[str, Any]) -> None:
        """What the vendor said of itself, as far as it can be."""
        for name, value in info.items():
            if (
                isinstance(value, INFO_TYPES.get(name, object))
                and value is not None
                and value != SYNTHETIC_MODEL
            ):
                if isinstance(value, list):
                    value = [
                        item for item in value if isinstance(item, ITEM_TYPES.get(name, object))
                    ]
                if name == "tools":
                    value = [normalize_tool_name(tool) for tool in value]
                self.vendor_info[name] = self._sanitizer.clean(value)

    def write_init(self) -> None:
        """The first line, and the user's message if it is said again."""
        config, conversation, assistant_message = (
            self.config,
            self._conversation,
            self._assistant_message,
        )
        if conversation.session_id is None:
            conversation.session_id = (
                config.session.requested_id
                or canonicalize_uuid(conversation.vendor_session_id or "")
                or config.session.new_id
            )
        shim_fields: dict[str, Any] = {
            "vendor": config.vendor.name,
            "unattended": config.vendor.is_unattended,
        }
        if version := self.vendor_info.get("vendor_version") or config.vendor.version:
            shim_fields["vendor_version"] = version
        shim_fields |= self.build_version_warning_fields()
        if config.vendor.is_replay:
            shim_fields["replay"] = True
        if config.output_style:
            self.vendor_info["output_style"] = config.output_style
        if config.requested_model:
            shim_fields["model_asked"] = config.requested_model
        if config.failed_attempts:
            shim_fields["tried"] = [item.to_json() for item in config.failed_attempts]
        if config.unsupported_rules:
            shim_fields["not_honoured"] = [item.to_json() for item in config.unsupported_rules]
        init_fields: dict[str, Any] = {
            "cwd": config.cwd,
            "tools": list(config.tools),
            "mode": config.mode,
            "shim": shim_fields,
        }
        model = (
            assistant_message.model
            or self.vendor_info.get("model")
            or config.model
            or config.default_model
        )
        assistant_message.model = (model or "unknown")[:MAX_NAME_CHARS]
        init_fields |= {"model": config.model or assistant_message.model} | self.vendor_info
        self._add_servers(init_fields)
        redact = self._context.redact
        if redact is not None:
            assistant_message.model = redact(assistant_message.model)
            init_fields |= {
                name: redact(value) for name, value in init_fields.items() if name in INFO_TYPES
            }
        if config.read_answer is not None and STRUCTURED_OUTPUT_TOOL not in init_fields["tools"]:
            init_fields["tools"] = [*init_fields["tools"], STRUCTURED_OUTPUT_TOOL]
        if config.evaluator is not None:
            init_fields["tools"] = config.evaluator.policy.list_visible_tools(init_fields["tools"])
        self._writer.write_init_message(conversation.session_id, init_fields)
        if self.user_message is not None:
            self.write_user_message_echo(self.user_message)

    def build_version_warning_fields(self) -> dict[str, Any]:
        """Return the keys of `init.shim` about a version that was not tested. Empty for a tested
        version.
        """
        vendor = self.config.vendor
        version_fields: dict[str, Any] = {}
        if vendor.unattended_reason:
            version_fields |= {"unattended": True, "unattended_reason": vendor.unattended_reason}
        if vendor.version_note:
            version_fields["version_note"] = vendor.version_note
        return version_fields

    def take_answered_messages(self) -> list[UserMessage]:
        """Return the steering messages that a reply has followed since the last call."""
        messages = self.new_steering_messages
        if messages:
            self.new_steering_messages = []
        return messages

    @property
    def unanswered_steering_message_count(self) -> int:
        """Return how many steering messages no reply has followed."""
        return len(self.steering_messages) - self.written_count

    def write_steering_messages(self) -> None:
        """A reply begins: the vendor has taken what was said to it before."""
        for message in self.steering_messages[self.written_count :]:
            self.write_user_message_echo(message)
            self.new_steering_messages.append(message)
        self.written_count = len(self.steering_messages)

    def write_user_message_echo(self, user_message: UserMessage) -> None:
        """A message of the user's: said again, if it is to be, with a word about what is left out
        of it.
        """
        if self.replays_message:
            self._writer.echo_user_message(
                user_message.raw_message, user_message.uuid, user_message.timestamp
            )
        if notice := user_message.describe_omitted_blocks(
            self.config.vendor.name, self.get_accepted_kinds()
        ):
            self._writer.write_synthetic_message(notice)

    def _add_servers(self, init_fields: dict[str, Any]) -> None:
        """MCP servers and their tools that the vendor does not list itself."""
        local_servers, local_tools = self.config.session.list_servers()
        if local_servers:
            listed_servers = {
                str(server.get("name")): server for server in init_fields.get("mcp_servers") or ()
            }
            init_fields["mcp_servers"] = list(
                {
                    **{str(local_server["name"]): local_server for local_server in local_servers},
                    **listed_servers,
                }.values()
            )
            init_fields["tools"] = list(dict.fromkeys((*init_fields["tools"], *local_tools)))

    def _change_session_id(self, vendor_session_id: str) -> None:
        """A dialect that can tell is told of a vendor's new id, if the old one was the
        conversation's (Yume's R12).
        """
        conversation, session_id = self._conversation, canonicalize_uuid(vendor_session_id)
        if (
            session_id
            and conversation.session_id is not None
            and conversation.session_id == conversation.vendor_session_id
        ):
            conversation.session_id = session_id
            self._writer.write_session_id_change(session_id)
