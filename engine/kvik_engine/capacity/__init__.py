"""What a model takes and a device can do, on paper: all that `kvik plan` computes. Pure, and without torch."""
