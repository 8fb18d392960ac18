"""Pure planning: keys to nodes, epoch order, windows, batches, cursors. No I/O, no asyncio."""
