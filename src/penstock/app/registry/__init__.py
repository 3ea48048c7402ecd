"""Values with a schema, by a schema registry: the codec, what asks the registry, and a room for each format."""
