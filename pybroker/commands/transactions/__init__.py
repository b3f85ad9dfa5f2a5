"""`pybroker transactions`: which of them hold readers back, once or live."""
