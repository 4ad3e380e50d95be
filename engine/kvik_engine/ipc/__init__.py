"""What the API process and the core process say to each other, and how."""
