"""The commands, by what they are about: a table each."""
