"""The setup that each vendor's users need before it runs, and the known traits of each vendor."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from anthropic_server import AnthropicServer
from gemini_server import GeminiServer
from model_scripts import ScriptedServer
from model_server import MODEL, SECOND_MODEL, ModelServer
from programs import CLAUDE, build_copilot_cache, find_pinned_version
from responses_server import ResponsesServer

QWEN_NO_RELAUNCH = "QWEN_CODE_NO_RELAUNCH"  # without this variable qwen starts itself a third time


@dataclass(frozen=True)
class Vendor:
    """A vendor program, and the setup that its users need before it runs."""

    name: str  # the drop-in's name for it
    package: str
    prepare: Callable[[Path, str], Mapping[str, str]]  # home and model address → environment
    claude_flags: tuple[str, ...] = ()  # Claude's flags that every run needs
    unattended: bool = False  # in one-shot mode it runs its tools without asking
    relative_paths: bool = False  # its file tools take relative paths
    fragments: bool = True  # it streams a reply
    announces: bool = True  # it prints a call before its result
    reader: str = "Read"  # Claude's name of the tool that it reads files with
    sandboxed: bool = False  # commands run without a prompt in a read-only sandbox
    quotes_errors: bool = True  # its error contains the message of the API
    attempts: int = 1  # for a request that the API always refuses
    retries_rate_limit: bool = True  # it repeats a request after a rate limit
    thinks: bool = True  # it prints the model's reasoning
    shows_files: bool = True  # the result of a read contains the file
    says_exit_codes: bool = True  # its output shows whether a command failed
    asks: bool = True  # it asks a frontend before it runs a call that needs permission
    gives_up: bool = True  # it soon stops retrying if the API stays broken
    server: type[ScriptedServer] = ModelServer
    names_files: bool = True  # its error about a missing file names the file
    # in a conversation it asks a frontend, and one child serves all messages
    two_way: bool = False
    changes: bool = True  # a call runs with the input that the frontend changed
    questions: bool = False  # its model has a tool for questions to the person
    stops_commands: bool = True  # an interrupt of a turn ends the running command
    asks_at_once: bool = False  # it requests permission for all calls of a reply at the same time
    resumes: bool = True  # another process can resume a session
    steers: bool = False  # its model receives a message during a turn
    images: bool = True  # its model receives the images of a message in two-way mode
    second_model: str = SECOND_MODEL  # a frontend's name of the second model

    def __str__(self) -> str:
        return (
            self.name
            if self.package == CLAUDE
            else f"{self.name}-{find_pinned_version(self.package)}"
        )

    @property
    def silent(self) -> bool:
        """Return whether it never asks in a conversation."""
        return self.unattended and not self.two_way

    def format_file_argument(self, file: Path) -> str:
        """Return how its model names a file of the working directory."""
        return file.name if self.relative_paths else str(file)

    def read_input(self, file: Path) -> Mapping[str, str]:
        """Return the arguments, with Claude's names, of the call that reads a file."""
        return {"command": f"cat {file}"} if self.reader == "Bash" else {"file_path": str(file)}


def prepare_qwen(home_folder: Path, url: str) -> Mapping[str, str]:
    """Set up qwen without features that call its model in the background, and with a trusted
    folder.

    It does not start itself a third time, which would take a third of a run.
    """
    settings = {
        "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
        "security": {"folderTrust": {"enabled": False}},
    }
    _write_json(home_folder / ".qwen" / "settings.json", settings)
    return {
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": "x",
        "OPENAI_MODEL": MODEL,
        QWEN_NO_RELAUNCH: "true",
    }


def prepare_pi(home_folder: Path, url: str) -> Mapping[str, str]:
    """Set up a custom provider called `mock`, with prices so that a turn has a cost."""
    model = {
        "reasoning": True,
        "input": ["text", "image"],
        "contextWindow": 128_000,
        "maxTokens": 4096,
        "cost": {"input": 3, "output": 15, "cacheRead": 0.3, "cacheWrite": 3.75},
    }
    models = [{"id": name, "name": name, **model} for name in (MODEL, SECOND_MODEL)]
    provider = {"baseUrl": url, "api": "openai-completions", "apiKey": "x", "models": models}
    settings = {"retry": {"baseDelayMs": 300}, "defaultProvider": "mock", "defaultModel": MODEL}
    folder = home_folder / "pi"
    _write_json(folder / "models.json", {"providers": {"mock": provider}})
    _write_json(folder / "settings.json", settings)
    return {"PI_CODING_AGENT_DIR": str(folder), "PI_OFFLINE": "1"}


def prepare_gemini(home_folder: Path, url: str) -> Mapping[str, str]:
    """Set up a meaningless key, and disable folder trust."""
    security = {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}}
    _write_json(home_folder / ".gemini" / "settings.json", {"security": security})
    return {
        "GOOGLE_GEMINI_BASE_URL": url,
        "GEMINI_API_KEY": "x",
        "GEMINI_TELEMETRY_ENABLED": "false",
    }


def prepare_opencode(home_folder: Path, url: str) -> Mapping[str, str]:
    """Set up a custom provider called `mock`, with prices. Nothing is fetched.

    opencode installs a package for plugins beside its settings at each start. Here it counts as
    installed.
    """
    settings_folder = home_folder / ".config" / "opencode"
    (settings_folder / "node_modules").mkdir(parents=True)
    installed = {"dependencies": {"@opencode-ai/plugin": "*"}}
    _write_json(settings_folder / "package-lock.json", {"packages": {"": installed}})
    model = {
        "limit": {"context": 128_000, "output": 8000},
        "reasoning": True,
        "tool_call": True,
        "attachment": True,
        "modalities": {"input": ["text", "image", "pdf"], "output": ["text"]},
        "cost": {"input": 3, "output": 15, "cache_read": 0.3},
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "mock",
        "options": {"baseURL": url, "apiKey": "x"},
        "models": {name: {"name": name, **model} for name in (MODEL, SECOND_MODEL)},
    }
    default = f"mock/{MODEL}"
    settings = {
        "model": default,
        "small_model": default,
        "share": "disabled",
        "provider": {"mock": provider},
    }
    return {
        "OPENCODE_CONFIG_CONTENT": json.dumps(settings),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        # a run is too short for the optimizing compiler: without it a fifth is saved
        "BUN_JSC_useDFGJIT": "0",
    }


def prepare_copilot(home_folder: Path, url: str) -> Mapping[str, str]:
    """Set up a custom model. copilot redacts its key in all output, so no other text may contain
    the key.

    Its program is already unpacked, as from a user's second run on.
    """
    (home_folder / ".cache").mkdir()
    (home_folder / ".cache" / "copilot").symlink_to(build_copilot_cache())
    return {
        "COPILOT_PROVIDER_BASE_URL": url,
        "COPILOT_PROVIDER_TYPE": "openai",
        "COPILOT_PROVIDER_API_KEY": "sk-dummy-4711",
        "COPILOT_MODEL": MODEL,
        "COPILOT_OFFLINE": "true",
    }


def prepare_claude(home_folder: Path, url: str) -> Mapping[str, str]:
    """Set up a meaningless key, and disable all requests that do not belong to the conversation."""
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "sk-dummy",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # ten by default, also of what cannot succeed: minutes of silence
        "CLAUDE_CODE_MAX_RETRIES": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_TELEMETRY": "1",
    }


def prepare_codex(home_folder: Path, url: str) -> Mapping[str, str]:
    """Set up a custom provider. The working directory is not a repository, so the drop-in's user
    must trust it.
    """
    settings = f"""
        model = "{MODEL}"
        model_provider = "mock"
        model_reasoning_summary = "detailed"
        model_supports_reasoning_summaries = true
        [model_providers.mock]
        name = "mock"
        base_url = "{url}"
        env_key = "MOCK_KEY"
        wire_api = "responses"
        request_max_retries = 1
        stream_max_retries = 1
    """
    _write_text(home_folder / ".codex" / "config.toml", settings)
    _write_text(home_folder / ".config" / "shim" / "config.toml", "[vendors.codex]\ntrust = true\n")
    return {"MOCK_KEY": "x"}


def prepare_vibe(home_folder: Path, url: str) -> Mapping[str, str]:
    """Set up a provider and a model with prices."""
    config = f"""
active_model = "{MODEL}"
[[providers]]
name = "mock"
api_base = "{url}"
api_key_env_var = "MOCK_KEY"
api_style = "openai"
backend = "generic"
[[models]]
name = "{MODEL}"
provider = "mock"
alias = "{MODEL}"
input_price = 3.0
output_price = 15.0
"""
    folder = home_folder / "vibe"
    folder.mkdir()
    (folder / "config.toml").write_text(config)
    return {"VIBE_HOME": str(folder), "MOCK_KEY": "sk-dummy-4711"}


def prepare_kimi(home_folder: Path, url: str) -> Mapping[str, str]:
    """Set up a provider, two models, and a meaningless login, which `kimi acp` requires for any
    model.
    """
    login = {
        "access_token": "x",
        "refresh_token": "",
        "expires_at": 9e9,
        "scope": "",
        "token_type": "Bearer",
    }
    _write_json(home_folder / ".kimi" / "credentials" / "kimi-code.json", login)
    model = {
        "provider": "mock",
        "max_context_size": 128_000,
        "capabilities": ["thinking", "image_in"],
    }
    config = {
        "default_model": MODEL,
        "models": {name: {"model": name, **model} for name in (MODEL, SECOND_MODEL)},
        "providers": {
            "mock": {"type": "openai_legacy", "base_url": url, "api_key": "sk-dummy-4711"}
        },
    }
    _write_json(home_folder / ".kimi" / "config.json", config)
    return {"KIMI_CLI_NO_AUTO_UPDATE": "1"}


def prepare_kimi_code(home_folder: Path, url: str) -> Mapping[str, str]:
    """Set up a provider and two models. No login is needed."""
    models = "".join(
        f'[models."{name}"]\nprovider = "mock"\nmodel = "{name}"\nmax_context_size = 128000\n'
        'capabilities = ["thinking", "image_in", "tool_use"]\n'
        for name in (MODEL, SECOND_MODEL)
    )
    provider = f'[providers.mock]\ntype = "openai"\nbase_url = "{url}"\napi_key = "sk-dummy-4711"\n'
    _write_text(
        home_folder / ".kimi-code" / "config.toml", f'default_model = "{MODEL}"\n{provider}{models}'
    )
    return {}


def prepare_kimi_code_asking(home_folder: Path, url: str) -> Mapping[str, str]:
    """Do the same with the driver of conversations, in a git work tree, in which it asks about
    fewer calls.
    """
    _write_text(
        home_folder / ".config" / "shim" / "config.toml",
        '[vendors.kimi-code]\ndriver = "two-way"\n',
    )
    (home_folder.parent / "work" / ".git").mkdir(parents=True, exist_ok=True)
    return prepare_kimi_code(home_folder, url)


def prepare_droid(home_folder: Path, url: str) -> Mapping[str, str]:
    """Set up a custom model and a meaningless key."""
    model = {
        "model": MODEL,
        "displayName": "mock",
        "baseUrl": url,
        "apiKey": "sk-dummy-4711",
        "provider": "generic-chat-completion-api",
        "maxOutputTokens": 4096,
    }
    _write_json(home_folder / ".factory" / "settings.json", {"customModels": [model]})
    return {"FACTORY_API_KEY": "x", "DROID_DISABLE_AUTO_UPDATE": "true"}


def prepare_cline(home_folder: Path, url: str) -> Mapping[str, str]:
    """Write what `cline auth openai` writes."""
    settings = {
        "provider": "openai-compatible",
        "apiKey": "sk-dummy-4711",
        "model": MODEL,
        "baseUrl": url,
    }
    entry = {"settings": settings, "updatedAt": "2026-11-27T00:00:00.000Z", "tokenSource": "manual"}
    providers = {"version": 1, "lastUsedProvider": "openai-compatible", "modes": {}}
    providers["providers"] = {"openai-compatible": entry}
    _write_json(home_folder / ".cline" / "data" / "settings" / "providers.json", providers)
    return {"CLINE_TELEMETRY_DISABLED": "1"}


QWEN = Vendor(
    "qwen",
    "@qwen-code/qwen-code",
    prepare_qwen,
    gives_up=False,
    two_way=True,
    questions=True,
    images=False,
)
PI = Vendor(
    "pi",
    "@earendil-works/pi-coding-agent",
    prepare_pi,
    ("--model", f"mock/{MODEL}"),
    unattended=True,
    two_way=True,
    steers=True,
    relative_paths=True,
    second_model=f"mock/{SECOND_MODEL}",
)
# The last of its cumulative generation: every update repeats the whole message.
PI_CUMULATIVE = Vendor(
    "pi",
    "@mariozechner/pi-coding-agent",
    prepare_pi,
    ("--model", f"mock/{MODEL}"),
    unattended=True,
    two_way=True,
    relative_paths=True,
    second_model=f"mock/{SECOND_MODEL}",
)
GEMINI = Vendor(
    "gemini",
    "@google/gemini-cli",
    prepare_gemini,
    ("--model", MODEL),
    thinks=False,
    shows_files=False,
    says_exit_codes=False,
    asks=False,
    gives_up=False,
    server=GeminiServer,
    two_way=True,
    changes=False,
    second_model=SECOND_MODEL,
)
OPENCODE = Vendor(
    "opencode",
    "opencode-ai",
    prepare_opencode,
    ("--model", f"mock/{MODEL}"),
    unattended=True,
    fragments=False,
    announces=False,
    gives_up=False,
    two_way=True,
    changes=False,
    second_model=f"mock/{SECOND_MODEL}",
)
CODEX = Vendor(
    "codex",
    "@openai/codex",
    prepare_codex,
    ("--model", MODEL),
    reader="Bash",
    sandboxed=True,
    quotes_errors=False,
    attempts=2,
    retries_rate_limit=False,
    two_way=True,
    changes=False,
    asks_at_once=True,
    questions=True,
    steers=True,
    server=ResponsesServer,
)
COPILOT = Vendor(
    "copilot",
    "@github/copilot",
    prepare_copilot,
    asks=False,
    gives_up=False,
    names_files=False,
    quotes_errors=False,
    attempts=3,
    two_way=True,
    changes=False,
)
VIBE = Vendor("vibe", "mistral-vibe", prepare_vibe, fragments=False, asks=False)
KIMI = Vendor(
    "kimi",
    "kimi-cli",
    prepare_kimi,
    unattended=True,
    fragments=False,
    asks=False,
    two_way=True,
    changes=False,
    stops_commands=False,
)
KIMI_CODE = Vendor(
    "kimi",  # the shim recognizes the program by its version
    "@moonshot-ai/kimi-code",
    prepare_kimi_code,
    unattended=True,
    fragments=False,
    asks=False,
    two_way=True,
    changes=False,
)
KIMI_CODE_ASKING = replace(KIMI_CODE, name="kimi-code", prepare=prepare_kimi_code_asking)
DROID = Vendor(
    "droid",
    "@factory/cli",
    prepare_droid,
    ("--model", f"custom:{MODEL}"),
    unattended=True,
    fragments=False,
    asks=False,
)
CLINE = Vendor("cline", "cline", prepare_cline, ("--model", MODEL), asks=False, resumes=False)
CLAUDE_ITSELF = Vendor(
    "claude",
    CLAUDE,
    prepare_claude,
    questions=True,
    steers=True,
    server=AnthropicServer,
    second_model="sonnet",
)
VENDORS = (QWEN, PI, PI_CUMULATIVE, GEMINI, OPENCODE, CODEX, COPILOT)


def _write_json(file: Path, value: object) -> None:
    _write_text(file, json.dumps(value))


def _write_text(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
