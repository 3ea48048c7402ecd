"""Which record or batch a handler receives next."""
