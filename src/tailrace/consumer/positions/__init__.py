"""Start positions of partitions: offset reset, seek, manual assignment."""
