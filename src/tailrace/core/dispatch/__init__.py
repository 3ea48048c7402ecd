"""Order of records and batches of a handler: lanes, batch assembly."""
