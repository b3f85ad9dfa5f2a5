"""Producers: turn an application's messages into SENDs, and match their receipts."""
