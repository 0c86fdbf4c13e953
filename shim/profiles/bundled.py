"""The vendors that this package describes in TOML; others may extend them."""

# Each is `shim/vendors/NAME.toml`.
PROFILES = ("acai", "amp", "cake", "cline", "codex", "copilot", "droid", "gemini", "kilo", "kimi", "opencode", "vibe")
