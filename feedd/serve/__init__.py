"""Serving: sessions, streams, the hand-over of arenas, and the gRPC server's life."""
