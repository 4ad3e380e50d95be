"""Executes step plans on one device: stable rows, gathered inputs, forward, sampling."""
