"""What runs in the next step: order, admission, victims."""
