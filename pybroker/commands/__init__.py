"""What `pybroker` can be told on the command line, beside running a broker: a room a command.

`admin` is pulsar-admin, `messages` is pulsar-client. Both read a client.conf, and take credentials
in the same words.
"""
