"""Handler signatures, dependencies, codecs: read once, when an app starts."""
