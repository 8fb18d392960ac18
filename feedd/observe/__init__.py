"""What an operator sees: metrics, logs, the status endpoint."""
