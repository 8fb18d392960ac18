"""Serving: sessions, streams, the hand-off of arenas, and the gRPC server's life."""
