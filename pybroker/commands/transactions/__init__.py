"""`pybroker transactions`: the transactions that block readers, once or live."""
