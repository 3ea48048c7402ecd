"""Assignment of topics to the handlers of a group.

Handlers read topics by name or by pattern. A group's own topics are the retry topics and replay topics from which its
handlers also receive records, and the topics in which delayed messages wait.

If a pattern selects a topic, it does not select the retry, replay and dead-letter topics of that topic, whether they
belong to this group or another one; and it never selects topics of delayed messages. Otherwise a handler would receive
its own dead letters again and again, and records that another group retries.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence

from tailrace.app.handlers import Handler
from tailrace.app.topics.names import DEAD, DELAYED, REPLAY, RETRY, NameForm, RetryTopic, retry_topics_of, topic_name
from tailrace.errors import ConfigurationError

__all__ = ["HandlerTopics", "Routes"]


class Routes:
    """Topics of one group; ``topic in self`` is True for the group's own topics.

    Attributes:
        handlers: handlers of the group; ``receivers`` returns indices of this list.
        retries: retry topics of the group, by name.
        publish_delays_ms: delays in milliseconds of the topics in which delayed messages wait, by name.
        delays_ms: delays in milliseconds of all topics whose records wait, by name.

    Raises:
        ConfigurationError: two handlers read the same topic and one of them has no ``when=``, or a topic template is
            invalid.
    """

    def __init__(self, group_id: str, handlers: Iterable[Handler]) -> None:
        self.group_id, self.handlers = group_id, list(handlers)
        self.retries: Mapping[str, RetryTopic] = retry_topics_of(self.handlers, group_id)
        self.publish_delays_ms: Mapping[str, int] = {
            topic: delay_ms for one in self.handlers for topic, delay_ms in one.delays_ms.items()
        }
        self.delays_ms: Mapping[str, int] = {
            **{name: one.delay_ms for name, one in self.retries.items()},
            **self.publish_delays_ms,
        }
        self._handler_topics = [HandlerTopics(one, group_id) for one in self.handlers]
        self._replay_form = NameForm(REPLAY, group=group_id)
        replays = {topic_name(REPLAY, topic=topic, group=group_id): topic for topic in self.topics}
        self._origins = {
            **replays,
            **{name: one.origin for name, one in self.retries.items()},
            **{name: name for name in self.publish_delays_ms},
        }
        self._origin_cache: dict[str, str | None] = {}
        """Results of ``_origin``."""
        for number, handler_topics in enumerate(self._handler_topics):
            for other in self._handler_topics[:number]:
                _check_overlap(other, handler_topics, group_id)
        self.dead_letters(())  # raises if a template is invalid

    @property
    def topics(self) -> frozenset[str]:
        """Topics that handlers read by name."""
        return frozenset(topic for one in self.handlers for topic in one.topics)

    @property
    def own_topics(self) -> frozenset[str]:
        """Retry and replay topics for the topics that handlers read by name, and topics of delayed messages."""
        return frozenset(self._origins)

    @property
    def patterns(self) -> Sequence[str]:
        """Patterns of the handlers that read topics by pattern."""
        return [one.pattern.pattern for one in self.handlers if one.pattern is not None]

    @property
    def matches_dead_letters(self) -> bool:
        """True if a handler has both a pattern and ``dead_letter=``.

        The names of its dead-letter topics depend on the topics that exist.
        """
        return any(one.dead_letter is not None and one.pattern is not None for one in self.handlers)

    @property
    def publish_topics(self) -> Mapping[str, str]:
        """Topics of ``publish=``, each with the name of one handler that publishes to it."""
        return {one.publish: one.name for one in self.handlers if one.publish is not None}

    def dead_letters(self, existing: Iterable[str]) -> tuple[Mapping[str, set[str]], Mapping[str, set[str]]]:
        """Return the dead-letter topics and the replay topics, each with the topics whose records it may contain.

        Args:
            existing: existing topics, from which the patterns of handlers select topics.

        Raises:
            ConfigurationError: a template yields an illegal name for a topic that a handler reads by name.
        """
        dead: dict[str, set[str]] = {}
        replays: dict[str, set[str]] = {}
        for handler, handler_topics in zip(self.handlers, self._handler_topics, strict=True):
            if handler.dead_letter is None:
                continue
            for topic in handler.topics or [one for one in existing if one in handler_topics]:
                # The name of a topic that a pattern selects may be too long for a suffix. The error is raised only when
                # a dead letter of that topic is sent.
                with contextlib.ExitStack() as stack:
                    if not handler.topics:
                        stack.enter_context(contextlib.suppress(ConfigurationError))
                    name = topic_name(handler.dead_letter, topic=topic, group=self.group_id)
                    replay = topic_name(REPLAY, topic=topic, group=self.group_id)
                    dead.setdefault(name, set()).add(topic)
                    replays.setdefault(replay, set()).add(topic)
        return dead, replays

    def __contains__(self, topic: object) -> bool:
        return isinstance(topic, str) and self._origin(topic) is not None

    def reads(self, topic: str) -> bool:
        """Return True if a handler receives records of ``topic``."""
        return any(topic in one for one in self._handler_topics) or topic in self

    def origin(self, topic: str) -> str:
        """Return the topic from which the records of an own topic came; return any other topic unchanged."""
        return self._origin(topic) or topic

    def receivers(self, topic: str) -> list[int]:
        """Return the indices of the handlers that may receive records of ``topic``, in order of declaration."""
        origin = self.origin(topic)
        return [number for number, one in enumerate(self._handler_topics) if origin in one]

    def overlapping_handlers(self, topic: str) -> tuple[Handler, Handler] | None:
        """Return two handlers that receive ``topic``, at least one without ``when=``; None if there is no such pair."""
        receivers = [self.handlers[number] for number in self.receivers(topic)]
        pairs = ((one, other) for at, other in enumerate(receivers) for one in receivers[:at])
        return next((pair for pair in pairs if not _both_have_when(*pair)), None)

    def _origin(self, topic: str) -> str | None:
        """Return the topic from which the records of an own topic came; None for any other topic."""
        try:
            return self._origin_cache[topic]
        except KeyError:
            replayed = (
                one
                for one in self._replay_form.topics_of(topic)
                if any(one in handler_topics for handler_topics in self._handler_topics)
            )
            found = self._origin_cache[topic] = self._origins.get(topic) or next(replayed, None)
            return found


class HandlerTopics:
    """Topics that one handler receives; ``topic in self`` is True for each of them."""

    def __init__(self, handler: Handler, group_id: str) -> None:
        self.handler = handler
        templates = {REPLAY, RETRY, DEAD} | ({handler.dead_letter} if handler.dead_letter else set())
        self._own_topic_forms = [form for one in templates for form in (NameForm(one), NameForm(one, group=group_id))]
        self._own_topic_forms.append(NameForm(DELAYED))

    def __contains__(self, topic: str) -> bool:
        pattern = self.handler.pattern
        if pattern is None:
            return topic in self.handler.topics
        if pattern.fullmatch(topic) is None:
            return False
        return not any(
            form.is_shared_name(topic) or any(pattern.fullmatch(origin) for origin in form.topics_of(topic))
            for form in self._own_topic_forms
        )

    def fullmatch(self, topic: str) -> bool:
        """Return ``topic in self``, so that this object can be used in place of a ``re.Pattern``."""
        return topic in self


def _check_overlap(one: HandlerTopics, other: HandlerTopics, group_id: str) -> None:
    """Check that two handlers read different topics, or that both have ``when=`` to select their records."""
    if _both_have_when(one.handler, other.handler):
        return
    for topic in (*one.handler.topics, *other.handler.topics):
        if topic in one and topic in other:
            raise ConfigurationError(
                f"{one.handler.name} and {other.handler.name} both receive topic {topic!r} in group {group_id!r}"
                " - set when=... for both, or a different group_id for one of them"
            )


def _both_have_when(one: Handler, other: Handler) -> bool:
    return one.when is not None and other.when is not None
