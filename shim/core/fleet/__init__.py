"""The fleet: keys, permissions, seals and messages of machines that a NATS server connects."""
