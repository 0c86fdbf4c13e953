"""What is asked of a vendor: how it is started for a turn, and what a child that stays for the
conversation is told.
"""

from collections.abc import Callable, Mapping

from shim.core.claude.argv.invocation import Invocation
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple, Protocol
from shim.core.reading.values import as_dict

if TYPE_CHECKING:
    from shim.core.adapter.translator import Translator
    from shim.core.claude.messages import BlockKinds, UserMessage
    from shim.core.claude.permissions import PermissionDecision, PermissionRequest
    from shim.core.policy.policy import Policy

# Linux refuses a single argument of 128 KiB; the rest of the command line needs room too.
MAX_ARGUMENT_BYTES = 100_000


class LaunchSpec(NamedTuple):
    """How to start a child: its arguments (without the program) and the bytes of its stdin, closed
    behind them.

    `environment` are variables that are added, `unset_variables` those that it must not see,
    `enforced_environment` those that carry rules, so that no setting goes before them.
    `needs_stdin_pipe`: a stdin with nothing in it is a pipe all the same. `temporary_files` are
    paths of ours that its arguments name, removed when it has ended.
    """

    arguments: tuple[str, ...]
    stdin: bytes = b""
    environment: Mapping[str, str] = {}
    unset_variables: tuple[str, ...] = ()
    needs_stdin_pipe: bool = False
    temporary_files: tuple[str, ...] = ()
    enforced_environment: Mapping[str, str] = {}


class VendorRunReportFileSpec(NamedTuple):
    """A file, one JSON object, that a vendor writes into `TurnFiles.report_folder` about its run,
    and its keys of use.
    """

    file_name: str
    usage_keys: tuple[str, ...]


class McpServers(NamedTuple):
    """MCP servers: name → configuration as Claude has it.

    `flag_servers` are those of `--mcp-config`, `private_servers` those that no command line may
    have.
    """

    flag_servers: Mapping[str, Mapping[str, Any]] = {}
    private_servers: Mapping[str, Mapping[str, Any]] = {}

    @property
    def all_servers(self) -> dict[str, Mapping[str, Any]]:
        return {**self.flag_servers, **self.private_servers}


class TurnReportAndAttachmentFiles(NamedTuple):
    """Files of ours that one turn has.

    `report_folder` is the folder where the vendor may write its `Environment.run_report`, None if
    it would not be read. `store_attachment` puts a file of the message, base64 and the end of its
    name, where the vendor reads it, and gives back its path, None when that cannot be; it is None
    itself where the vendor reads none.
    """

    report_folder: str | None = None
    store_attachment: Callable[[str, str], str | None] | None = None


class LaunchRequest(NamedTuple):
    """One turn that is asked of a vendor.

    `mode_arguments` are the arguments that honour the permission mode `permission_mode`,
    `resume_id` is the vendor's own id of the session that goes on, `variant` the vendor's dialect
    if it has several, `opens_trust_prompt` whether its trust gate may be opened, `has_flag` tells
    whether the installed program has a flag, `removed_tools` are Claude's names of the tools that
    are denied as a whole. `persistent`: the child stays for the conversation and is told everything
    through its stdin (`Adapter.child_input_ref`). `policy_bypass`: why the program may not obey
    what keeps it narrow, a file of ours or our hook; "" where it does. `policy` has the rules that
    it is kept to; `hook_argv` are the words that start our hook, which judges one call by them.
    `environment` is what its child would see. `session` is the session's id where the vendor's own
    is another one, and `transcript_path` a path in the folder of its history. `mode_file` has the
    mode while it may change; "" where it may not. `store_text` writes a text to a file of ours,
    whose name has the given end; its path, None when that cannot be. `files` says where other files
    are. `mcp_servers` are the MCP servers that it is told of.
    """

    invocation: Invocation
    prompt: str
    mode_arguments: tuple[str, ...] = ()
    permission_mode: str = "default"
    resume_id: str | None = None
    variant: str = "auto"
    opens_trust_prompt: bool = False
    has_flag: Callable[[str], bool] = lambda flag: True
    removed_tools: tuple[str, ...] = ()
    persistent: bool = False
    environment: Mapping[str, str] = {}
    store_text: Callable[..., str | None] = lambda text, suffix=".txt": None
    files: TurnReportAndAttachmentFiles = TurnReportAndAttachmentFiles()
    policy_bypass: str = ""
    policy: "Policy | None" = None
    hook_argv: tuple[str, ...] = ()
    session_id: str = ""
    transcript_path: str = ""
    mode_file: str = ""
    mcp_servers: McpServers = McpServers()

    def can_ask_user(self) -> bool:
        """Whether the frontend can be asked a question to the person."""
        from shim.core.claude.permissions import QUESTION_TOOL

        has_prompt_tool = self.invocation.permission_prompt_tool == "stdio"
        return has_prompt_tool and (
            self.policy is None or bool(self.policy.list_visible_tools((QUESTION_TOOL,)))
        )

    def build_full_prompt(self) -> str:
        """The prompt behind the system prompts, for vendors that have no flag for them."""
        system_prompts = (
            self.invocation.system_prompt,
            self.invocation.append_system_prompt,
        )
        return "\n\n".join([text for text in system_prompts if text] + [self.prompt])

    def format_flag(self, name: str, value: str | None) -> list[str]:
        """`[name, value]`, or nothing when there is no value.

        A value that begins with a dash is joined with `=`, so that it cannot become a flag
        (threats: frontend); pi, which knows no `=`, takes the next word whatever it is.
        """
        if not value:
            return []
        return [f"{name}={value}"] if value.startswith("-") else [name, value]

    def store_oversized_argument(self, text: str | None) -> str | None:
        """The path of a file that holds a text which is too long for an argument; None for one that
        is not.
        """
        if text and len(text.encode("utf-8", "replace")) > MAX_ARGUMENT_BYTES:
            return self.store_text(text)
        return None

    def list_mcp_configs_without_sdk_servers(self) -> list[str]:
        """`--mcp-config`, without the servers of type `sdk`, which live in the frontend itself.

        A vendor reaches those through relays of ours, which are among the private servers.
        """
        return [
            reachable
            for config in self.invocation.mcp_config
            if (reachable := remove_sdk_servers(config))
        ]

    def write_private_mcp_config_files(self) -> list[str]:
        """The path of a file of ours with the private servers, for a vendor that reads such files."""
        import orjson

        servers = self.mcp_servers.private_servers
        path = None
        if servers:
            path = self.store_text(orjson.dumps({"mcpServers": servers}).decode(), ".json")
        if path is None:
            return []
        return [path]


class ChildInput(Protocol):
    """Encodes what a child that stays is told. Each method returns the bytes of whole lines.

    The driver ends the child if it cannot accept prompts any more.
    """

    @property
    def can_accept_prompts(self) -> bool:
        return True

    @property
    def accepted_block_kinds(self) -> "BlockKinds":
        """The kinds of blocks beside text that a message may have, as far as they are known after
        the handshake.
        """
        return frozenset()

    def create_translator_factory(
        self, translator: "type[Translator]"
    ) -> "Callable[..., Translator]":
        """Return what creates the translator of the child's lines.

        A translator that has to know what the child was asked is created with the session.
        """
        return translator

    def encode_handshake(self, request: LaunchRequest) -> bytes: ...

    def set_vendor_session_id(self, session: str) -> None:
        """Store the vendor's id of a resumed session. It is set before any line that may contain
        it.
        """
        return

    def encode_prompt(self, message: "UserMessage") -> bytes:
        """Encode a message, or keep it and return no line until the child has answered the
        handshake.
        """

    def encode_steering_message(self, message: "UserMessage") -> bytes | None:
        """Encode a message for the running turn, or return None if the child cannot take it now.

        It is tried again while the turn runs, and otherwise gets a turn of its own.
        """
        return None

    def pop_undelivered_message_count(self) -> int:
        """Return how many of the last steering messages the vendor did not take before its turn
        ended, and reset the count. Each of them gets a turn of its own.
        """
        return 0

    def encode_interrupt(self) -> bytes:
        """Stop the turn. The child stays for the next turn."""

    def encode_model_change(self, name: str | None) -> bytes | None:
        """Change the model (None: the vendor's default), or return None if that needs another
        child.
        """

    def encode_effort_change(self, level: str | None) -> bytes | None:
        """Change the effort, by Claude's name (None: the vendor's default), or return None if that
        needs another child.
        """

    def encode_permission_mode_change(self, name: str) -> bytes | None:
        """Change the permission mode, by Claude's name, or return None if that needs another
        child.
        """

    def encode_heartbeat(self) -> bytes:
        """Ask for a sign of life. Return no line for a vendor that does not answer it."""
        return b""

    def encode_permission_response(
        self, permission: "PermissionRequest", decision: "PermissionDecision"
    ) -> bytes:
        """Encode the answer to a permission request. Raise ValueError, with a text for the model, if
        the vendor would ignore a changed input.
        """


def remove_sdk_servers(config: str) -> str:
    """A configuration as it came, unless it names such a server; "" when nothing else is in it."""
    import orjson

    try:
        settings = orjson.loads(config)
    except orjson.JSONDecodeError:
        return config  # the path of a file
    servers = as_dict(settings).get("mcpServers")
    if not isinstance(servers, dict):
        return config
    sdk_names = {
        name
        for name, server in servers.items()
        if isinstance(server, dict) and server.get("type") == "sdk"
    }
    if not sdk_names:
        return config
    remaining = {name: server for name, server in servers.items() if name not in sdk_names}
    if remaining:
        return orjson.dumps(settings | {"mcpServers": remaining}).decode()
    return ""


def can_pass_as_argument(prompt: str) -> bool:
    """Whether a prompt may be one argument: short, and not to be taken for a flag, a file or a
    subcommand.
    """
    if " " not in prompt:
        return False
    if prompt.startswith(("-", "@")):
        return False
    return len(prompt.encode("utf-8", "replace")) <= MAX_ARGUMENT_BYTES


def encode_prompt_stdin(prompt: str) -> bytes:
    return prompt.encode("utf-8", "replace")
