"""The Kvik engine: one model served over HTTP by an API process and a core process."""
