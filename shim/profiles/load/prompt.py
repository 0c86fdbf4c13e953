"""Chooses how the program receives a prompt: as an argument, on stdin, or in a temporary file. The
module `launch` describes the settings.
"""

from shim.core.adapter.adapter import MAX_ARGUMENT_BYTES, LaunchRequest, can_pass_as_argument
from shim.core.errors import FrontendError
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


class PromptDeliveryConfig:
    """The values in `launch.prompt`, as defined by PROMPT_KEYS."""

    def __init__(self, node: ConfigNode) -> None:
        prompt = node.read_keys(PROMPT_KEYS)
        self.via = prompt["via"]
        self.dash_guard = prompt["dash_guard"]
        self.long_via = prompt["long"]
        self.max_bytes = int(prompt["max_bytes"])


def split_system_prompts_by_delivery(
    request: LaunchRequest, used_placeholder_names: set[str]
) -> tuple[str, str, list[str]]:
    """Return the system prompt, the appended system prompt, and the texts to put before the prompt.

    A system prompt goes before the prompt if the program has no flag for it, or if it is too long
    for an argument.
    """
    system = request.invocation.system_prompt
    if not system:
        system = ""
    appended_system = request.invocation.append_system_prompt
    if not appended_system:
        appended_system = ""
    if "append_system_prompt" not in used_placeholder_names:
        system = "\n\n".join(filter(None, (system, appended_system)))
        appended_system = ""
    prompt_prefixes = []
    if system and (
        "system_prompt" not in used_placeholder_names or _count_bytes(system) > MAX_ARGUMENT_BYTES
    ):
        prompt_prefixes.append(system)
        system = ""
    if appended_system and _count_bytes(appended_system) > MAX_ARGUMENT_BYTES:
        prompt_prefixes.append(appended_system)
        appended_system = ""
    return system, appended_system, prompt_prefixes


def needs_space_before_prompt_argument(dash_guard: str, prompt: str) -> bool:
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


def choose_prompt_argument_or_file(
    delivery: PromptDeliveryConfig, request: LaunchRequest, prompt_text: str, vendor_name: str
) -> tuple[bool, str | None]:
    """Return whether the prompt is an argument, and the path of the prompt's file or None. If the
    prompt is neither an argument nor a file, the program reads it from stdin.

    Raise FrontendError if the prompt cannot be delivered in any way.
    """
    if delivery.via == "stdin":
        return False, None
    is_too_long = _count_bytes(prompt_text) > delivery.max_bytes
    if delivery.via == "arg":
        is_safe_argument = delivery.dash_guard != "stdin" or can_pass_as_argument(prompt_text)
        if is_safe_argument and not is_too_long and prompt_text:
            return True, None
        if delivery.long_via == "stdin" or (delivery.dash_guard == "stdin" and not is_too_long):
            return False, None
    if delivery.via == "file" or delivery.long_via == "file":
        if path := request.store_text(prompt_text):
            return False, path
        raise FrontendError(
            f"the prompt for {vendor_name} could not be written to a file",
            hint="check that the disk is not full",
        )
    if is_too_long:
        raise FrontendError(
            f"the prompt is longer than {delivery.max_bytes} bytes, and {vendor_name} "
            "takes it only as an argument",
            hint="put the long part into a file and refer to it in the prompt",
        )
    raise FrontendError(
        f"{vendor_name} takes its prompt only as an argument, and this prompt cannot be passed "
        "as an argument",
        hint="change the prompt",
    )
