"""The plugin's errors: a sentence for people, printed as one line, exit code 1."""


class PluginError(Exception):
    """What could not be done, and why. A line without a full stop at its end."""


class NoAnswerError(PluginError):
    """Nothing came back in time, or at all."""
