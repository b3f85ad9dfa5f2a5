"""The commands of `pybroker` besides running a broker, one package each.

`admin` is pulsar-admin, `messages` is pulsar-client. Both read a client.conf and take credentials
in the same way.
"""
