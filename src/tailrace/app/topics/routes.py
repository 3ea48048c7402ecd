"""Which topics the handlers of a group read: those that they name, what their patterns match, and the group's own.

Rule of this file: by names alone. A pattern takes no letters: what is called like a retry topic, replays or dead
letters of a topic that it matches, of whatever group, is none of its topics. Or a handler would be given its own dead
letters and bury them for ever, and what another group tries again would be handled here, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence

from tailrace.app.handlers import Handler
from tailrace.app.topics.names import DEAD, REPLAY, RETRY, NameForm, topic_name
from tailrace.app.topics.retry_topics import RetryTopic, retry_topics_of
from tailrace.errors import ConfigurationError

__all__ = ["HandlerTopics", "Routes"]


class Routes:
    """The topics of one group; ``in`` asks whether one is the group's own.

    Args:
        handlers: each with the template of its dead letters, where it has any.

    Attributes:
        retries: the retry topics.

    Raises:
        ConfigurationError: two handlers take the same records, or a template will not do.
    """

    def __init__(self, group_id: str, handlers: Iterable[tuple[Handler, str | None]]) -> None:
        given = list(handlers)
        self.group_id, self.handlers = group_id, [handler for handler, _ in given]
        self.retries: Mapping[str, RetryTopic] = retry_topics_of(self.handlers, group_id)
        self._takings = [HandlerTopics(handler, group_id, template) for handler, template in given]
        self._replay = NameForm(REPLAY, group=group_id)
        replays = {topic_name(REPLAY, topic=topic, group=group_id): topic for topic in self.topics}
        self._origins = {**replays, **{name: one.origin for name, one in self.retries.items()}}
        self._known: dict[str, str | None] = {}
        for number, taking in enumerate(self._takings):
            for other in self._takings[:number]:
                _check(other, taking, group_id)
        self.dead_letters(())

    @property
    def topics(self) -> frozenset[str]:
        """Those that handlers name."""
        return frozenset(topic for one in self.handlers for topic in one.topics)

    @property
    def own(self) -> frozenset[str]:
        """The retry and replay topics, as far as they are known by name."""
        return frozenset(self._origins)

    @property
    def patterns(self) -> Sequence[str]:
        """Those of handlers that have one."""
        return [one.pattern.pattern for one in self.handlers if one.pattern is not None]

    @property
    def matches_dead_letters(self) -> bool:
        """True if a handler has a pattern and dead letters: their topics are known only with those that it matches."""
        return any(one.dead_letter is not None and one.handler.pattern is not None for one in self._takings)

    @property
    def publish_topics(self) -> Mapping[str, str]:
        """The topics that handlers name by ``publish=``, each with one of these handlers."""
        return {one.publish: one.name for one in self.handlers if one.publish is not None}

    def dead_letters(self, existing: Iterable[str]) -> tuple[Mapping[str, set[str]], Mapping[str, set[str]]]:
        """Return dead-letter topics and replay topics, each with the topics that it is for.

        Args:
            existing: topics of the cluster; those that a handler's pattern matches count, too.

        Raises:
            ConfigurationError: a template gives no legal name for a topic that a handler names.
        """
        dead: dict[str, set[str]] = {}
        replays: dict[str, set[str]] = {}
        for taking in self._takings:
            if taking.dead_letter is None:
                continue
            for topic in taking.handler.topics or [one for one in existing if one in taking]:
                # The longest topics that a pattern matches leave no room for a suffix; burying raises for these.
                with contextlib.ExitStack() as stack:
                    if not taking.handler.topics:
                        stack.enter_context(contextlib.suppress(ConfigurationError))
                    name = topic_name(taking.dead_letter, topic=topic, group=self.group_id)
                    replay = topic_name(REPLAY, topic=topic, group=self.group_id)
                    dead.setdefault(name, set()).add(topic)
                    replays.setdefault(replay, set()).add(topic)
        return dead, replays

    def __contains__(self, topic: object) -> bool:
        return isinstance(topic, str) and self._origin(topic) is not None

    def reads(self, topic: str) -> bool:
        """Whether records of ``topic`` come to one of the handlers."""
        return any(topic in one for one in self._takings) or topic in self

    def origin(self, topic: str) -> str:
        """The topic where what comes from one of the group's own was read first; any other is its own origin."""
        return self._origin(topic) or topic

    def receivers(self, topic: str) -> list[int]:
        """The handlers that may take records of ``topic``, by their places."""
        origin = self.origin(topic)
        return [number for number, one in enumerate(self._takings) if origin in one]

    def contested(self, topic: str) -> tuple[Handler, Handler] | None:
        """Two handlers that take a topic both, of which nobody knew before; None when there are none."""
        receivers = [self.handlers[number] for number in self.receivers(topic)]
        pairs = ((one, other) for at, other in enumerate(receivers) for one in receivers[:at])
        return next((pair for pair in pairs if not _share(*pair)), None)

    def _origin(self, topic: str) -> str | None:
        try:
            return self._known[topic]
        except KeyError:
            replayed = (one for one in self._replay.topics_of(topic) if any(one in taking for taking in self._takings))
            found = self._known[topic] = self._origins.get(topic) or next(replayed, None)
            return found


class HandlerTopics:
    """What one handler takes: ``in`` asks for a topic.

    Args:
        handler: by names, or by a pattern.
        group_id: the group that it is of.
        dead_letter: the template of its dead letters, where it has any.
    """

    def __init__(self, handler: Handler, group_id: str, dead_letter: str | None) -> None:
        self.handler, self.dead_letter = handler, dead_letter or None
        templates = {REPLAY, RETRY, DEAD, *(() if dead_letter is None else (dead_letter,))}
        self._letters = [form for one in templates for form in (NameForm(one), NameForm(one, group=group_id))]

    def __contains__(self, topic: str) -> bool:
        pattern = self.handler.pattern
        if pattern is None:
            return topic in self.handler.topics
        if pattern.fullmatch(topic) is None:
            return False
        return not any(
            form.is_of_all(topic) or any(pattern.fullmatch(origin) for origin in form.topics_of(topic))
            for form in self._letters
        )

    def fullmatch(self, topic: str) -> bool:
        """The same, as a pattern has it."""
        return topic in self


def _check(one: HandlerTopics, other: HandlerTopics, group_id: str) -> None:
    """Two handlers of one topic and group need a ``when=`` to tell whose a record is."""
    if _share(one.handler, other.handler):
        return
    for topic in (*one.handler.topics, *other.handler.topics):
        if topic in one and topic in other:
            raise ConfigurationError(
                f"{one.handler.name} and {other.handler.name} both take topic {topic!r} in group {group_id!r}"
                " - say when=... for both, or give one a group_id of its own"
            )


def _share(one: Handler, other: Handler) -> bool:
    return one.when is not None and other.when is not None
