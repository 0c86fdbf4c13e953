"""Who answers in a turn, and its first line, `init`."""

from collections.abc import Callable, Mapping
from typing import Any

from shim.core.claude.messages import TEXT_ONLY_KINDS, BlockKinds, UserMessage
from shim.core.policy.policy import STRUCTURED_OUTPUT_TOOL
from shim.core.policy.rules import normalize_tool_name
from shim.core.reading.account import Diagnostics
from shim.core.reading.ids import parse_uuid
from shim.core.reading.json_text import JsonSanitizer
from shim.core.turn.reply import SYNTHETIC_MODEL, AssistantMessage
from shim.core.turn.terms import MAX_NAME_CHARS, ConversationState, OutputWriter, TurnConfig

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

    def __init__(
        self,
        pen: OutputWriter,
        terms: TurnConfig,
        conversation: ConversationState,
        exact: JsonSanitizer,
        reply: AssistantMessage,
    ) -> None:
        self._writer = pen
        self._conversation = conversation
        self._sanitizer = exact
        self._assistant_message = reply
        self.config = terms
        self.vendor_info: dict[str, Any] = {}
        self.user_message: UserMessage | None = None
        # what the vendor is given of a message beside its text
        self.get_accepted_kinds: Callable[[], BlockKinds] = lambda: TEXT_ONLY_KINDS
        # what the facts of the init line are said as
        self.redact: Callable[[Any], Any] | None = None
        self.steering_messages: list[
            UserMessage
        ] = []  # said to the vendor in the middle of the turn
        self.written_count = 0  # how many of them a reply has followed
        self.new_steering_messages: list[UserMessage] = []  # those since the shell has looked
        self.replays_message = False  # the message is said again behind the init line

    def set_vendor_session(self, session: str, account: Diagnostics, *, is_closed: bool) -> None:
        """The vendor named its session."""
        conversation = self._conversation
        if conversation.vendor_session_id not in (None, session):
            account.record("session_id_changed", session)
            if self.config.can_retry and not is_closed:
                self._change_session_id(session)
        conversation.vendor_session_id = session

    def update_vendor_info(self, facts: Mapping[str, Any]) -> None:
        """What the vendor said of itself, as far as it can be."""
        for name, value in facts.items():
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
        terms, conversation, reply = self.config, self._conversation, self._assistant_message
        if conversation.session_id is None:
            conversation.session_id = (
                terms.session.requested_id
                or parse_uuid(conversation.vendor_session_id or "")
                or terms.session.new_id
            )
        shim: dict[str, Any] = {
            "vendor": terms.vendor.name,
            "unattended": terms.vendor.is_unattended,
        }
        if version := self.vendor_info.get("vendor_version") or terms.vendor.version:
            shim["vendor_version"] = version
        shim |= self.describe_version()
        if terms.vendor.is_replay:
            shim["replay"] = True
        if terms.output_style:
            self.vendor_info["output_style"] = terms.output_style
        if terms.requested_model:
            shim["model_asked"] = terms.requested_model
        if terms.failed_attempts:
            shim["tried"] = [it.to_json() for it in terms.failed_attempts]
        if terms.unsupported_rules:
            shim["not_honoured"] = [it.to_json() for it in terms.unsupported_rules]
        facts: dict[str, Any] = {
            "cwd": terms.cwd,
            "tools": list(terms.tools),
            "mode": terms.mode,
            "shim": shim,
        }
        named = reply.model or self.vendor_info.get("model") or terms.model or terms.default_model
        reply.model = (named or "unknown")[:MAX_NAME_CHARS]
        facts |= {"model": terms.model or reply.model} | self.vendor_info
        self._add_servers(facts)
        if self.redact is not None:
            reply.model = self.redact(reply.model)
            facts |= {
                name: self.redact(value) for name, value in facts.items() if name in INFO_TYPES
            }
        if terms.read_answer is not None and STRUCTURED_OUTPUT_TOOL not in facts["tools"]:
            facts["tools"] = [*facts["tools"], STRUCTURED_OUTPUT_TOOL]
        if terms.evaluator is not None:
            facts["tools"] = terms.evaluator.policy.list_visible_tools(facts["tools"])
        self._writer.write_init(conversation.session_id, facts)
        if self.user_message is not None:
            self.write_user_message(self.user_message)

    def describe_version(self) -> dict[str, Any]:
        """Return the keys of `init.shim` about a version that was not tested. Empty for a tested
        version.
        """
        vendor = self.config.vendor
        facts: dict[str, Any] = {}
        if vendor.unattended_reason:
            facts |= {"unattended": True, "unattended_reason": vendor.unattended_reason}
        if vendor.version_note:
            facts["version_note"] = vendor.version_note
        return facts

    def write_steering_messages(self) -> None:
        """A reply begins: the vendor has taken what was said to it before."""
        for message in self.steering_messages[self.written_count :]:
            self.write_user_message(message)
            self.new_steering_messages.append(message)
        self.written_count = len(self.steering_messages)

    def write_user_message(self, message: UserMessage) -> None:
        """A message of the user's: said again, if it is to be, with a word about what is left out
        of it.
        """
        if self.replays_message:
            self._writer.echo_message(message.raw_message, message.uuid, message.timestamp)
        if notice := message.describe_omitted_blocks(
            self.config.vendor.name, self.get_accepted_kinds()
        ):
            self._writer.write_notice(notice)

    def _add_servers(self, facts: dict[str, Any]) -> None:
        """MCP servers and their tools that the vendor does not list itself."""
        servers, tools = self.config.session.list_servers()
        if servers:
            listed = {str(server.get("name")): server for server in facts.get("mcp_servers") or ()}
            facts["mcp_servers"] = list(
                {**{str(one["name"]): one for one in servers}, **listed}.values()
            )
            facts["tools"] = list(dict.fromkeys((*facts["tools"], *tools)))

    def _change_session_id(self, session: str) -> None:
        """A dialect that can tell is told of a vendor's new id, if the old one was the
        conversation's (Yume's R12).
        """
        conversation, found = self._conversation, parse_uuid(session)
        if (
            found
            and conversation.session_id is not None
            and conversation.session_id == conversation.vendor_session_id
        ):
            conversation.session_id = found
            self._writer.write_session_change(found)
