"""`pybroker transactions`: which transactions hold readers back, once or live."""
