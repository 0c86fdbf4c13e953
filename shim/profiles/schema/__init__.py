"""All keys of a profile in one table, and those that a later version may remove."""
