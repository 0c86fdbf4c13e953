"""What a frontend may ask and change in the middle of a conversation: the vendor's name, models, mode, prompts."""

from collections.abc import Callable, Iterable, Mapping

from shim.core.reading.typed import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shim.core.claude.hooks import Hooks
    from shim.core.claude.policy import Policy

MODE_NAMES = ("acceptEdits", "auto", "bypassPermissions", "default", "dontAsk", "plan")


class Facts:
    """What the answers are made of, and what the requests change: the conversation reads it when a turn begins.

    modes         the permission modes that the vendor can honour
    bypass        whether the session may change to bypassPermissions
    prompts       whether the frontend answers permission requests
    asks          whether the vendor makes any
    unattended    whether the vendor runs its tools and asks nobody
    state_events  "", "visible" or "host" (contract 5.13)
    checked       gives the name that the vendor is told for a model's name, None for the vendor's own model; raises
                  ValueError for a model that the vendor must not be told
    known_model   what the last `init` said
    transcript    the path of the session's transcript, "" when none is written
    replays       whether a message of the frontend's is said back (C15)
    line_bytes    no line of ours is longer: a question that would be is not put
    hooks         what the frontend's `initialize` registered
    """

    def __init__(
        self,
        *,
        vendor: str,
        session_id: str,
        mode: str,
        model: str | None = None,
        modes: tuple[str, ...] = MODE_NAMES,
        bypass: bool = False,
        prompts: bool = False,
        state_events: str = "",
        policy: "Policy | None" = None,
        process: int = 0,
        cwd: str = "",
        asks: bool = False,
        line_bytes: int = 1_000_000,
        replays: bool = False,
        checked: Callable[[str], str | None] = lambda model: model,
        unattended: bool = False,
    ) -> None:
        self.vendor = vendor
        self.session_id = session_id
        self.mode = mode
        self.model = self.first_model = model
        self.modes = modes
        self.bypass = bypass
        self.prompts = prompts
        self.state_events = state_events
        self.policy = policy
        self.process = process
        self.cwd = cwd
        self.asks = asks
        self.line_bytes = line_bytes
        self.replays = replays
        self.hooks: Hooks | None = None
        self.transcript = ""
        self.checked = checked
        self.unattended = unattended
        self.known_model = ""
        self._models: dict[str, tuple[str | None, str | None]] = {}  # of those that were at it
        self.system_prompt: str | None = None
        self.append_system_prompt: str | None = None
        self.cost = 0.0

    def serve(self, vendor: str, modes: tuple[str, ...], *, asks: bool, unattended: bool) -> None:
        """From now on it is this vendor; another one's model and what it said of itself are not this one's."""
        self._models[self.vendor] = self.model, self.first_model
        self.vendor, self.modes, self.asks, self.unattended = vendor, modes, asks, unattended
        self.model, self.first_model = self._models.get(vendor, (None, None))
        self.known_model = ""

    def allows(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Whether a call was allowed beforehand (`--allowedTools`)."""
        return self.policy is not None and self.policy.permits(tool, arguments)

    def allow(self, rules: Iterable[str]) -> None:
        """Calls that need no more question in this session: the frontend's user said so."""
        if self.policy is not None:
            self.policy.allow(rules)

    def resolved_model(self) -> str:
        """The model of the next turn, as far as it is known."""
        return self.model or self.known_model or "default"

    def models(self) -> list[dict[str, Any]]:
        """At least one: some clients take the first without looking (C3)."""
        own = f"The model that {self.vendor} uses by itself"
        listed = [{"value": "default", "displayName": f"Default ({self.vendor})", "description": own}]
        if self.first_model and self.first_model != "default":
            name = self.first_model
            listed.append({"value": name, "displayName": name, "description": f"{name} through {self.vendor}"})
        return listed
