"""Progress of delivery: what is fetched, delivered, finished and committed."""
