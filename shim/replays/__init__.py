"""A recording played again: as the child, as what the frontend saw, and against today's translator."""
