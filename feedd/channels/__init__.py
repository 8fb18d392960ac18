"""SageMaker's channels: what a job's files say, and which objects a node reads in an epoch. No requests."""
