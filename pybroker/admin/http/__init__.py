"""The stages that every request passes before a route handles it: socket, limits, authentication,
permissions.
"""
