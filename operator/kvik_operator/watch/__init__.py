"""From the API server's events to keys in a queue, and who may act on them."""
