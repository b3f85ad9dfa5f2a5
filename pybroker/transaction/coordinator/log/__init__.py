"""The log of a coordinator: its records, their formats, where they are stored."""
