"""All keys of a profile in one table, and the keys that a later version may remove."""
