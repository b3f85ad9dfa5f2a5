"""`pybroker admin …`: pulsar-admin's commands, over the REST API of any broker.

Each command is a row of a table (tables/): its arguments as in pulsar-admin, and the request that
it makes. A command that needs more than one request is a function beside its table.
"""
