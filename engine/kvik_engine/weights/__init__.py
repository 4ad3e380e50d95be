"""Model files: where they come from, what they are, what is in them. Files are foreign: every reader is bounded."""
