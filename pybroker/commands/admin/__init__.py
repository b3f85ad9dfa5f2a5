"""`pybroker admin …`: pulsar-admin's commands, over the REST API of any broker.

A command is a row of a table (tables/): its arguments as pulsar-admin spells them, and the request
that they make. What takes more than one request is a function beside its table.
"""
