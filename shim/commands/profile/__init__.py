"""`shim vendor`: drafts and checks a user's own profile."""
