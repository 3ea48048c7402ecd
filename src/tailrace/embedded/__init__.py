"""The real Apache Kafka broker as child processes: no Docker, no system Java, nothing left behind.

Look in ``cluster`` for what a test uses, in ``node`` for one broker's process, in ``settings`` for its configuration,
in ``java`` and ``jars`` for where the parts come from, in ``storage`` and ``classes`` for what makes the next start
faster, in ``ports`` and ``runs`` for where it listens and how nothing stays behind, in ``topics`` for the little that
has to be asked of the broker. Needs the extra ``testing``.
"""
