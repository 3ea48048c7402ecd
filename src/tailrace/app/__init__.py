"""App: the declaration of handlers, and the code that runs them."""
