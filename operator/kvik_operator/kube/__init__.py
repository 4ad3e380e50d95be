"""The only talk to the API server besides kopf's watches."""
