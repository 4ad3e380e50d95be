"""The core process: take messages, plan a step, run it, tell what came of it."""
