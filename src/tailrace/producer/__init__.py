"""Producers: idempotent and transactional."""
