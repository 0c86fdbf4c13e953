"""`shim vendor`: drafts and checks profiles of a user."""
