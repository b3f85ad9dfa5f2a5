"""Share groups (KIP-932): what a member is given of a partition, and what it says of it."""
