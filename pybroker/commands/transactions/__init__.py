"""`pybroker transactions`: which transactions block readers, once or live."""
