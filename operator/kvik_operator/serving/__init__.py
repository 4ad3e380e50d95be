"""Ports that strangers may reach: HTTP with bounds on what a client may send or hold."""
