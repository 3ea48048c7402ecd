"""Where reading begins: offset reset, seek, manual assignment."""
