"""Shard bytes to sample spans (formats), sample bytes to arrays (codecs), and the worker processes that do it."""
