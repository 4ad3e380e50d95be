"""From the engines' `GET /load` to the number of replicas a pool should have."""
