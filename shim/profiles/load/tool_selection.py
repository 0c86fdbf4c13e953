"""Chooses the program's tools for one turn. The result fills in the placeholders `denied_tools`,
`allowed_tools` and `chosen_tools` of `argv`, which the module `launch` describes.
"""

from collections.abc import Collection, Mapping

from shim.core.adapter.adapter import LaunchRequest
from shim.core.adapter.tools import Tools
from shim.core.errors import FrontendError
from shim.core.policy.policy import PermissionRule
from shim.core.reading.typed import NamedTuple
from shim.profiles.compile.tools import get_claude_names


class ToolSelector(NamedTuple):
    """Chooses from the tools of one program."""

    tools: Tools
    mode_tools: Mapping[str, tuple[str, ...]]  # permission mode → `permission_tools`
    vendor_name: str

    def build_placeholder_values(
        self, request: LaunchRequest, used_names: Collection[str]
    ) -> dict[str, list[str]]:
        """Return the values of the placeholders in `used_names`. Raise FrontendError if no tool
        remains.
        """
        values = {}
        if "denied_tools" in used_names:
            values["denied_tools"] = self._list_denied_tools(request.removed_tools)
        if "allowed_tools" in used_names:
            values["allowed_tools"] = self._list_remaining_tools(request)
        if "chosen_tools" in used_names:
            values["chosen_tools"] = self._list_chosen_tools(request)
        return values

    def _list_denied_tools(self, removed_tools: tuple[str, ...]) -> list[str]:
        """Return the program's names for all tools that can do the same as a removed Claude tool."""
        return [
            vendor_name
            for vendor_name, tool in self.tools.items()
            if not get_claude_names(tool).isdisjoint(removed_tools)
        ]

    def _list_remaining_tools(self, request: LaunchRequest) -> list[str]:
        """Return the program's names for the remaining tools, or [] if no tool is removed. Raise
        FrontendError if no tool remains.
        """
        chosen = _get_chosen_tools(request)
        limits_tools = request.permission_mode in self.mode_tools
        if chosen is None and not request.removed_tools and not limits_tools:
            return []
        remaining_tools = set().union(*map(get_claude_names, self.tools.values()))
        if limits_tools:
            remaining_tools = self._select_tools_of_mode(remaining_tools, request)
        if chosen is not None:
            remaining_tools &= chosen
        return self._list_vendor_tools(remaining_tools - set(request.removed_tools))

    def _select_tools_of_mode(self, claude_names: set[str], request: LaunchRequest) -> set[str]:
        """Return the tools in `claude_names` that the permission mode has, or that an allow rule
        adds to the mode.
        """
        allow_rules: tuple[PermissionRule, ...] = ()
        if request.policy is not None:
            allow_rules = request.policy.allow
        adding_rules = [
            rule
            for rule in allow_rules
            if can_allow_rule_add_tool_to_mode(rule, request, self.mode_tools)
        ]
        mode_tools = self.mode_tools[request.permission_mode]
        return {
            tool
            for tool in claude_names
            if tool in mode_tools or any(rule.matches_tool(tool) for rule in adding_rules)
        }

    def _list_chosen_tools(self, request: LaunchRequest) -> list[str]:
        """Return the program's names for the tools in `--tools`, or [] without the flag. Raise
        FrontendError if the program does not have any of these tools.
        """
        chosen = _get_chosen_tools(request)
        if chosen is None:
            return []
        return self._list_vendor_tools(chosen)

    def _list_vendor_tools(self, claude_names: set[str]) -> list[str]:
        """Return the program's tools of which all Claude names are in `claude_names`. Raise
        FrontendError if there is no such tool.
        """
        vendor_tools = [
            vendor_tool
            for vendor_tool, tool in self.tools.items()
            if get_claude_names(tool) <= claude_names
        ]
        if not vendor_tools:
            raise FrontendError(
                f"{self.vendor_name} has none of the tools that --tools and the rules leave enabled",
                hint="allow one of its tools, or choose another vendor (`shim vendors`)",
            )
        return vendor_tools


def can_allow_rule_add_tool_to_mode(
    allow_rule: PermissionRule, request: LaunchRequest, mode_tools: Mapping[str, tuple[str, ...]]
) -> bool:
    """Return whether an allow rule makes its tool available in the permission mode."""
    if allow_rule.content is not None:
        return False
    if request.permission_mode not in mode_tools:
        return False
    return request.permission_mode != "plan"


def _get_chosen_tools(request: LaunchRequest) -> set[str] | None:
    """Return Claude's names for the tools in `--tools`, or None without the flag."""
    chosen = request.invocation.tools
    policy = request.policy
    if chosen is None:
        return None
    if policy is None or policy.only_tools is None:
        return set(chosen)
    return set(policy.only_tools)
