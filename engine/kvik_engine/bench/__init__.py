"""Load for any OpenAI endpoint, and what its clients see of it: all of `kvik bench`."""
