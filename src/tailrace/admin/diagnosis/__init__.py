"""Collection of the facts that ``tailrace doctor`` judges. No request changes the cluster."""
