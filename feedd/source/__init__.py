"""Where bytes come from: listing, manifests, stores, their wrappers, and the parallel range fetcher."""
