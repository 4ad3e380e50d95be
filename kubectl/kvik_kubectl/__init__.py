"""`kubectl kvik`: what people do to a pool by hand; it knows the API server only."""
