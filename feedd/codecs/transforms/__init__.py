"""What a recipe does to a decoded sample: parameters and outcomes, which are pure, and doing it, in workers."""
