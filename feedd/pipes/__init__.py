"""``feedd pipe``: FIFOs of SageMaker's Pipe mode, one for each epoch of a channel."""
