"""The request for a turn, the description of the child process to start, and the encoder of
messages for a persistent child.
"""

from collections.abc import Callable, Mapping

from shim.core.claude.argv.flags import Invocation
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple, Protocol
from shim.core.reading.values import as_dict

if TYPE_CHECKING:
    from shim.core.adapter.translator import Translator
    from shim.core.claude.messages import BlockKinds, UserMessage
    from shim.core.claude.permissions import PermissionDecision, PermissionRequest
    from shim.core.policy.policy import Policy

# Linux refuses a single argument of 128 KiB. The limit is lower, because the rest of the command
# line needs space too.
MAX_ARGUMENT_BYTES = 100_000


class LaunchSpec(NamedTuple):
    """How to start a child process: its arguments without the program, and the data for its stdin.
    After this data, stdin is closed.

    `environment` has variables to add, and `unset_variables` has variables to remove.
    `enforced_environment` has variables that carry permission rules, so no setting overrides them.
    `needs_stdin_pipe` makes stdin a pipe even if it has no data. `temporary_files` are paths of the
    shim's files that the arguments name. These files are removed after the child has ended.
    """

    arguments: tuple[str, ...]
    stdin: bytes = b""
    environment: Mapping[str, str] = {}
    unset_variables: tuple[str, ...] = ()
    needs_stdin_pipe: bool = False
    temporary_files: tuple[str, ...] = ()
    enforced_environment: Mapping[str, str] = {}


class VendorRunReportFileSpec(NamedTuple):
    """A file into which a vendor writes one JSON object about its run. The file is in
    `TurnReportAndAttachmentFiles.report_folder`. `usage_keys` are the keys that the shim reads.
    """

    file_name: str
    usage_keys: tuple[str, ...]


class McpServers(NamedTuple):
    """The MCP servers of a turn, each with Claude's configuration of the server.

    `flag_servers` are the servers from `--mcp-config`. `private_servers` are servers that must not
    appear on a command line. `relay_names` are the names of those private servers that are relays
    of the shim, which decides about each of their calls before it runs.
    """

    flag_servers: Mapping[str, Mapping[str, Any]] = {}
    private_servers: Mapping[str, Mapping[str, Any]] = {}
    relay_names: tuple[str, ...] = ()

    @property
    def all_servers(self) -> dict[str, Mapping[str, Any]]:
        return {**self.flag_servers, **self.private_servers}


class TurnReportAndAttachmentFiles(NamedTuple):
    """The shim's files for one turn.

    `report_folder` is the folder for the vendor's report (`VendorEnvironment.run_report`), or None
    if no report is needed.

    `store_attachment` stores an attachment of the user message where the vendor can read it. The
    function takes the file's content in base64 and a suffix for its name. It returns the path, or
    None on failure. `store_attachment` is None if the vendor reads no files.
    """

    report_folder: str | None = None
    store_attachment: Callable[[str, str], str | None] | None = None


class LaunchRequest(NamedTuple):
    """A request to run a vendor for one turn.

    mode_arguments      the vendor's arguments for `permission_mode`
    resume_id           the vendor's id of the session to resume
    rewind_target       the vendor's id of the last turn to keep in the resumed session, or "" to
                        keep all turns
    variant             the vendor's dialect, if it has several
    opens_trust_prompt  whether the vendor may trust the folder
    has_flag            returns whether the installed program has a flag
    removed_tools       Claude's names for the tools whose calls are all denied
    persistent          the child runs for the whole conversation, and receives everything on its
                        stdin (`Adapter.child_input_ref`)
    environment         the environment variables of the child
    store_text          writes a text to one of the shim's files, whose name gets the given suffix;
                        returns its path, or None on failure
    files               the shim's other files for the turn
    policy_bypass       why the program may ignore the file or hook that restricts it, or ""
    policy              the permission rules of the turn
    hook_argv           the arguments that start the shim's hook, which checks one tool call
    session_id          the shim's id of the session, if the vendor uses a different one
    transcript_path     a path in the folder of the session's transcript
    mode_file           the file with the permission mode if the mode can change during the turn, or
                        ""
    mcp_servers         the MCP servers of the turn
    hooks_may_allow     a hook of the frontend may allow a tool call that is not allowed otherwise
    """

    invocation: Invocation
    prompt: str
    mode_arguments: tuple[str, ...] = ()
    permission_mode: str = "default"
    resume_id: str | None = None
    rewind_target: str = ""
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
    hooks_may_allow: bool = False

    def can_ask_user(self) -> bool:
        """Return whether the frontend can ask the user a question."""
        from shim.core.claude.permissions import QUESTION_TOOL

        if self.invocation.permission_prompt_tool != "stdio":
            return False
        if self.policy is None:
            return True
        return bool(self.policy.list_visible_tools((QUESTION_TOOL,)))

    def build_full_prompt(self) -> str:
        """Return the system prompts followed by the user's prompt, for a vendor that has no flags
        for system prompts.
        """
        system_prompts = (
            self.invocation.system_prompt,
            self.invocation.append_system_prompt,
        )
        return "\n\n".join([text for text in system_prompts if text] + [self.prompt])

    def format_flag(self, name: str, value: str | None) -> list[str]:
        """Return `[name, value]`, or [] if there is no value.

        If the value begins with a dash, the result is `["name=value"]`, so that the program does
        not parse the value as a flag. pi does not support `=`, and always takes the next argument
        as the value.
        """
        if not value:
            return []
        if value.startswith("-"):
            return [f"{name}={value}"]
        return [name, value]

    def store_oversized_argument(self, text: str | None) -> str | None:
        """Write a text that is too long for an argument to a file, and return the file's path.
        Return None if the text is short enough, or if the file cannot be written.
        """
        if text and len(text.encode("utf-8", "replace")) > MAX_ARGUMENT_BYTES:
            return self.store_text(text)
        return None

    def list_mcp_configs_without_sdk_servers(self) -> list[str]:
        """Return the values of `--mcp-config` without servers of type `sdk`, which run inside the
        frontend.

        A vendor reaches sdk servers through the shim's relays, which are among the private servers.
        """
        return [
            reachable
            for config in self.invocation.mcp_config
            if (reachable := remove_sdk_servers(config))
        ]

    def write_private_mcp_config_files(self) -> list[str]:
        """Write the private MCP servers to a configuration file for the vendor. Return a list with
        the file's path, or [] if there are no private servers or the file cannot be written.
        """
        return self.write_mcp_config_files(self.mcp_servers.private_servers)

    def write_mcp_config_files(self, servers: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Write MCP servers to a configuration file. Return a list with its path, or [] if there
        are no servers or the file cannot be written.
        """
        if not servers:
            return []
        import orjson

        path = self.store_text(orjson.dumps({"mcpServers": servers}).decode(), ".json")
        if path is None:
            return []
        return [path]


class ChildInput(Protocol):
    """Encodes the messages for a persistent child process. Each encoding method returns the bytes
    of complete lines.

    The driver ends the child when the child can no longer accept prompts. If `accepts_steering` is
    set, the child accepts messages during a turn. If `changes_call_input` is set, a permission
    answer can change the arguments of a tool call.
    """

    accepts_steering: bool = False
    changes_call_input: bool = True

    @property
    def can_accept_prompts(self) -> bool:
        return True

    @property
    def accepted_block_kinds(self) -> "BlockKinds":
        """The kinds of content blocks, besides text, that the child accepts in a message. They are
        unknown until the child has answered the handshake.
        """
        return frozenset()

    def create_translator_factory(
        self, translator: "type[Translator]"
    ) -> "Callable[..., Translator]":
        """Return a function that creates the translator for the child's output.

        A subclass overrides this method if its translator must know the requests that were sent to
        the child.
        """
        return translator

    @property
    def can_compact(self) -> bool:
        """Whether the child compacts its context on request (`UserMessage.is_compaction`)."""
        return False

    def encode_handshake(self, request: LaunchRequest) -> bytes: ...

    def set_vendor_session_id(self, session: str) -> None:
        """Store the vendor's id of a resumed session. This method is called before any line that
        may contain the id is encoded.
        """
        return

    def encode_prompt(self, message: "UserMessage") -> bytes:
        """Return the line for a prompt. Until the child has answered the handshake, store the
        prompt and return no line.
        """

    def encode_steering_message(self, message: "UserMessage") -> bytes | None:
        """Return the line for a message that joins the running turn, or None if the child cannot
        accept the message now.

        The driver tries again while the turn runs. If the turn ends first, the message gets its own
        turn.
        """
        return None

    def pop_undelivered_message_count(self) -> int:
        """Return how many of the last steering messages the vendor had not accepted when its turn
        ended, and reset the count. Each of these messages gets its own turn.
        """
        return 0

    def encode_interrupt(self) -> bytes:
        """Return the line that stops the turn. The child keeps running for the next turn."""

    def encode_model_change(self, name: str | None) -> bytes | None:
        """Return the line that changes the model, or None if a new child must be started to change
        it. `name` is None for the vendor's default model.
        """

    def encode_effort_change(self, level: str | None) -> bytes | None:
        """Return the line that changes the effort level, or None if a new child must be started to
        change it. `level` is Claude's name for the level, or None for the vendor's default.
        """

    def encode_permission_mode_change(self, name: str) -> bytes | None:
        """Return the line that changes the permission mode, given by Claude's name. Return None if
        a new child must be started to change it.
        """

    def encode_heartbeat(self) -> bytes:
        """Return a line that the child must answer, or b"" if the vendor does not support
        heartbeats.
        """
        return b""

    def encode_permission_response(
        self, permission: "PermissionRequest", decision: "PermissionDecision"
    ) -> bytes:
        """Return the line that answers a permission request. Raise ValueError if the vendor would
        ignore a changed tool input. The error's text is for the model.
        """


def remove_sdk_servers(config: str) -> str:
    """Return an MCP configuration without servers of type `sdk`. If the configuration has no such
    servers, it is returned unchanged. If it has no other servers, return "".
    """
    import orjson

    try:
        settings = orjson.loads(config)
    except orjson.JSONDecodeError:
        return config  # the configuration is the path of a file
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
    """Return whether a prompt can be passed as one argument. The prompt must be short enough, and
    the program must not parse it as a flag, a file or a subcommand.
    """
    if " " not in prompt:
        return False
    if prompt.startswith(("-", "@")):
        return False
    return len(prompt.encode("utf-8", "replace")) <= MAX_ARGUMENT_BYTES


def encode_prompt_stdin(prompt: str) -> bytes:
    return prompt.encode("utf-8", "replace")
