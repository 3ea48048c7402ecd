"""Everything observable about a consumer: one list of events, one Protocol to be told of them, one way to log them."""
