"""qwen (Qwen Code): `qwen --output-format stream-json --approval-mode MODE`, the prompt on stdin.

Measured: 0.24.4 and 0.15.10. `qwen_stream` translates its lines, `qwen_speech` is what it is told.
"""

from shim.core.vendor.vendor import Abilities, Enforcement, Launch, Request, Surroundings, Vendor, as_stdin
from shim.core.vendor.versions import VersionProbe
from shim.vendors.qwen_tools import TOOLS

# The warning about unattended runs is ours to give.
ENVIRONMENT = {"QWEN_CODE_SUPPRESS_YOLO_WARNING": "1"}
SYSTEM_PROMPT_FILE = "QWEN_SYSTEM_MD"  # names a file that stands for --system-prompt


def launch(request: Request) -> Launch:
    """Any flag that it does not know ends it, so only its own are passed (page, section 2)."""
    invocation = request.invocation
    arguments = ["--output-format", "stream-json", *approval(request)]
    if request.listens:
        arguments += ["--input-format", "stream-json"]
    if invocation.streams.partial:
        arguments.append("--include-partial-messages")
    arguments += request.flag("--model", invocation.model)
    arguments += request.flag("--fallback-model", invocation.fallback_model)
    kept_prompt = request.kept(invocation.system.system_prompt)
    environment = ENVIRONMENT | {SYSTEM_PROMPT_FILE: kept_prompt} if kept_prompt else ENVIRONMENT
    arguments += request.flag("--system-prompt", None if kept_prompt else invocation.system.system_prompt)
    arguments += request.flag("--append-system-prompt", invocation.system.append_system_prompt)
    turns = invocation.limits.max_turns
    if turns is not None and not request.listens:  # it counts for the process, Claude for the turn
        arguments += ["--max-session-turns", str(turns)]
    kept = VENDOR.own_names(invocation.rules.tools or ())
    arguments += [f"--core-tools={name}" for name in kept]
    # Without a name to keep, "only these" has to be said as "none of those": an empty list would mean all. The tool
    # of --json-schema is none to choose, and `--core-tools` leaves it alone: it is how the answer is given.
    none = [name for name in TOOLS if name != "structured_output"]
    removed = none if invocation.rules.tools is not None and not kept else VENDOR.own_names(request.removed)
    arguments += [f"--exclude-tools={name}" for name in removed]
    for directory in invocation.add_dirs:
        arguments += ["--add-dir", directory]
    arguments += [f"--mcp-config={config}" for config in request.mcp_configs()]
    if not request.listens:  # with stream-json input it refuses the flag
        arguments += request.flag("--json-schema", invocation.json_schema)
    arguments += session(request)
    return Launch(tuple(arguments), b"" if request.listens else as_stdin(request.prompt), environment)


# What it asks about in its mode `default`; what only reads runs unasked in all of its modes.
ASKED = frozenset(("Bash", "Edit", "Write", "NotebookEdit", "WebFetch"))
ASKING = ("--approval-mode", "default")


def approval(request: Request) -> tuple[str, ...]:
    """Its arguments for the mode. While it can ask, it asks before each call, and the policy answers.

    Of its own modes only the plan and, where no rule stands against it, the widest say the same as Claude's.
    """
    ruled = request.policy is not None and request.policy.ruled
    own = request.permission_mode in ("plan", "auto") or (request.permission_mode == "bypassPermissions" and not ruled)
    return ASKING if request.listens and not own else request.mode


def asks(request: Request) -> frozenset[str]:
    return ASKED if request.listens and approval(request) == ASKING else frozenset()


def session(request: Request) -> list[str]:
    """Its session flags are Claude's, but an id of our own cannot be given to a resumed session."""
    invocation = request.invocation
    if request.resume:
        return ["--resume", request.resume] + (["--fork-session"] if invocation.session.fork_session else [])
    return request.flag("--session-id", invocation.session.session_id)


# A request that fails is made again 28 times in 84 s without a word (page, section 6): that is how long it takes where
# each fails at once, and each may take half a minute of its own.
SILENT_SECONDS = 28 * 30.0 + 84

VENDOR = Vendor(
    name="qwen",
    programs=("qwen",),
    version=VersionProbe(tested=">=0.15.10,<0.25"),
    translates="shim.vendors.qwen_stream:QwenTranslator",
    launch=launch,
    modes={
        "default": ("--approval-mode", "default"),
        "plan": ("--approval-mode", "plan"),
        "acceptEdits": ("--approval-mode", "auto-edit"),
        "dontAsk": ("--approval-mode", "default"),
        "auto": ("--approval-mode", "auto"),
        "bypassPermissions": ("--approval-mode", "yolo"),
    },
    tools=TOOLS,
    abilities=Abilities(
        limits_tools=True, limits_turns=True, streams=True, resumes=True, retracts=True, structures=True
    ),
    timeouts={"first_byte_timeout": SILENT_SECONDS, "idle_timeout": SILENT_SECONDS},
    enforcement=Enforcement(asks=asks),
    login="start `qwen` once and choose how with /auth, or set OPENAI_API_KEY (and OPENAI_BASE_URL)",
    speaks="shim.vendors.qwen_speech:QwenSpeech",
    surroundings=Surroundings(api_base="OPENAI_BASE_URL"),
)
