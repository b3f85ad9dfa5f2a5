"""Producers: from an application's message to a SEND and its receipt."""
