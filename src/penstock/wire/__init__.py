"""Messages to bytes and back, in every version that penstock speaks.

Look in ``schema`` for how a table becomes a codec, in ``api`` for what is on the wire around a message, in the files
named after a subject (``session``, ``cluster``, ``group``, ``offsets``, ``log``, ``topics``) for the tables
themselves, in ``members`` for what group members tell each other, in ``batches`` for records (``old_batches`` for
those of formats that nobody writes any more). No IO, no clock.
"""
