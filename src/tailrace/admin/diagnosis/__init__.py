"""Collection of facts for ``tailrace doctor``. The requests do not change the cluster."""
