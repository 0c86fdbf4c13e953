"""Chooses how the program receives a prompt: as an argument, on stdin, or in a temporary file. The
module `launch` describes the settings.
"""

from collections.abc import Collection

from shim.core.adapter.adapter import (
    MAX_ARGUMENT_BYTES,
    LaunchRequest,
    can_pass_as_argument,
    encode_prompt_stdin,
)
from shim.core.claude.argv.flags import Invocation
from shim.core.errors import FrontendError
from shim.core.reading.typed import Any, NamedTuple
from shim.profiles.check.config_node import ConfigKey, ConfigNode

PROMPT_CHANNELS = ("arg", "stdin", "file")
DASH_GUARDS = ("--", "equals", "space", "word", "stdin")
LONG_PROMPT_CHANNELS = ("stdin", "file", "refuse")


PROMPT_KEYS = {
    "via": ConfigKey(
        ConfigNode.read_choice,
        "how the program receives the prompt: as an argument (`{prompt}`), on stdin, or "
        "in a file that the shim writes (`{prompt_file}`)",
        PROMPT_CHANNELS,
        "stdin",
    ),
    "dash_guard": ConfigKey(
        ConfigNode.read_choice,
        "what keeps a prompt from becoming a flag or a subcommand. `stdin`: such a "
        "prompt is sent on stdin. `--`: this argument precedes each prompt. `equals`: "
        "the prompt is part of an argument such as `--prompt={prompt}`. `space`: a space "
        "is put before a dash, for a prompt that is the value of a flag. `word`: a space "
        "is put before a dash and before a single word, for a prompt without a flag",
        DASH_GUARDS,
        "stdin",
    ),
    "long": ConfigKey(
        ConfigNode.read_choice,
        "how to pass a prompt that is too long for an argument",
        LONG_PROMPT_CHANNELS,
        "stdin",
    ),
    "max_bytes": ConfigKey(
        ConfigNode.read_number,
        "the maximum length of an argument, in bytes",
        1,
        MAX_ARGUMENT_BYTES,
        MAX_ARGUMENT_BYTES,
        successor="",
    ),
}


class SystemPrompts(NamedTuple):
    """The system prompts of a turn, divided by how the program receives them."""

    text: str  # the value of `{system_prompt}`, or ""
    appended_text: str  # the value of `{append_system_prompt}`, or ""
    prompt_prefixes: list[str]  # the texts to put before the prompt


class PreparedPrompt(NamedTuple):
    """The prompt of a turn, and how the program receives it."""

    text: str  # begins with the system prompts that are not arguments
    argument: str  # the value of `{prompt}`
    channel: str  # a member of PROMPT_CHANNELS
    path: str | None  # the file that contains `text` if the channel is `file`
    system_prompts: SystemPrompts

    def build_placeholder_values(self) -> dict[str, Any]:
        """Return the values of the placeholders and conditions about the prompts, by name."""
        return {
            "prompt": self.argument,
            "prompt_file": self.path,
            "prompt_argument": self.channel == "arg",
            "prompt_stdin": self.channel == "stdin",
            "system_prompt": self.system_prompts.text,
            "append_system_prompt": self.system_prompts.appended_text,
        }

    def encode_stdin(self) -> bytes:
        """Return the prompt for the program's stdin, or b"" if it has another channel."""
        if self.channel != "stdin":
            return b""
        return encode_prompt_stdin(self.text)

    def list_files(self) -> tuple[str, ...]:
        """Return the path of the prompt's file, if there is one."""
        if self.path is None:
            return ()
        return (self.path,)


class PromptDeliveryConfig:
    """The values in `launch.prompt`, as defined by PROMPT_KEYS."""

    def __init__(self, node: ConfigNode) -> None:
        prompt = node.read_keys(PROMPT_KEYS)
        self.via = prompt["via"]
        self.dash_guard = prompt["dash_guard"]
        self.long_via = prompt["long"]
        self.max_bytes = int(prompt["max_bytes"])

    def prepare_prompt(
        self, request: LaunchRequest, used_names: Collection[str], vendor_name: str
    ) -> PreparedPrompt:
        """Choose how the program receives the prompt, and write the prompt's file if it needs one.
        `used_names` are the placeholders in `argv`.

        Raise FrontendError if the prompt cannot be delivered in any way.
        """
        system_prompts = _split_system_prompts(request.invocation, used_names)
        text = "\n\n".join([*system_prompts.prompt_prefixes, request.prompt])
        argument = text
        if _needs_space_before_prompt_argument(self.dash_guard, text):
            argument = f" {text}"
        channel = self._choose_channel(text, vendor_name)
        path = None
        if channel == "file":
            path = _store_prompt(text, request, vendor_name)
        return PreparedPrompt(text, argument, channel, path, system_prompts)

    def _choose_channel(self, text: str, vendor_name: str) -> str:
        """Return the member of PROMPT_CHANNELS by which the program receives a prompt. Raise
        FrontendError if there is no such channel.
        """
        if self.via != "arg":
            return str(self.via)
        is_too_long = _count_bytes(text) > self.max_bytes
        is_safe_argument = self.dash_guard != "stdin" or can_pass_as_argument(text)
        if text and is_safe_argument and not is_too_long:
            return "arg"
        if self.long_via == "stdin":
            return "stdin"
        if self.dash_guard == "stdin" and not is_too_long:
            return "stdin"
        if self.long_via == "file":
            return "file"
        if is_too_long:
            raise FrontendError(
                f"the prompt is longer than {self.max_bytes} bytes, and {vendor_name} "
                "takes it only as an argument",
                hint="put the long part into a file and refer to it in the prompt",
            )
        raise FrontendError(
            f"{vendor_name} takes its prompt only as an argument, and this prompt cannot be passed "
            "as an argument",
            hint="change the prompt",
        )


def _split_system_prompts(invocation: Invocation, used_names: Collection[str]) -> SystemPrompts:
    """Divide the system prompts by how the program receives them.

    A system prompt goes before the prompt if the program has no flag for it, or if it is too long
    for an argument.
    """
    text = invocation.system_prompt or ""
    appended_text = invocation.append_system_prompt or ""
    if "append_system_prompt" not in used_names:
        text = "\n\n".join(filter(None, (text, appended_text)))
        appended_text = ""
    prompt_prefixes = []
    has_flag = "system_prompt" in used_names
    if text and (not has_flag or _count_bytes(text) > MAX_ARGUMENT_BYTES):
        prompt_prefixes.append(text)
        text = ""
    if _count_bytes(appended_text) > MAX_ARGUMENT_BYTES:
        prompt_prefixes.append(appended_text)
        appended_text = ""
    return SystemPrompts(text, appended_text, prompt_prefixes)


def _needs_space_before_prompt_argument(dash_guard: str, prompt: str) -> bool:
    """Return whether the prompt argument needs a leading space. Without the space, the program
    could parse the prompt as a flag, a file or a subcommand.
    """
    if dash_guard in ("space", "word") and prompt.startswith(("-", "@")):
        return True
    if dash_guard != "word":
        return False
    return " " not in prompt


def _count_bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _store_prompt(text: str, request: LaunchRequest, vendor_name: str) -> str:
    """Write the prompt to a file, and return the file's path. Raise FrontendError on failure."""
    path = request.store_text(text)
    if not path:
        raise FrontendError(
            f"the prompt for {vendor_name} could not be written to a file",
            hint="check that the disk is not full",
        )
    return path
