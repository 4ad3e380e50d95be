"""Model architectures, their configuration and the registry that finds them by name."""
