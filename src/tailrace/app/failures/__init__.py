"""Failed records: failure policy, dead letters and delays of retry topics."""
