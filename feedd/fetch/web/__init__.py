"""Objects on web servers and on the Hugging Face Hub."""
