"""A CUDA that exists only in Python: streams, events, a caching allocator, pinned memory, graph capture.

Runs on a CPU build of torch. A kernel or copy is queued on the current stream of the calling thread, and runs only when
the schedule lets it. Schedules are adversarial: a stream is eager, lazy (runs only where somebody waits) or random.
"""
