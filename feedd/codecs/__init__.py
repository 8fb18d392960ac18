"""Decodes sample bytes to arrays, one module per family. Workers load image libraries only when needed."""
