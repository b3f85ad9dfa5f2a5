"""What every request passes before it comes to a route: the socket, limits, who asks, and may."""
