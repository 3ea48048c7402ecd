"""Messages to bytes and back, in every version that penstock speaks.

Look in ``schema`` for how a table becomes a codec and in ``primitives`` for what it is made of, in ``api`` for what is
on the wire around a message, in the files named after a subject (``session``, ``cluster``, ``group`` and
``reconciliation`` for the two protocols of membership, ``offsets``, ``log``, ``groups``, ``topics``, ``configs``) for
the tables themselves (``produce`` and ``transactions`` for what is written, and the batches of it), in ``members``
for what group members tell each other, in ``batches`` for records that are read (``old_batches`` for those of formats
that nobody writes any more). No IO, no clock.
"""
