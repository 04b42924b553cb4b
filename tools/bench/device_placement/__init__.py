"""Device placement."""
