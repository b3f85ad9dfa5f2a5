"""Transactional ids: epochs, client sessions, and ending what older sessions have left."""
