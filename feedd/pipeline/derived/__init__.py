"""Objects made from objects: which are wanted, who makes them, what is known of them, the cache that holds them."""
