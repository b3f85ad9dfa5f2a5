"""The list of topics, and what there is to see and to do of one."""
