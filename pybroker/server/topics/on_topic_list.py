"""GET_TOPICS_OF_NAMESPACE, WATCH_TOPIC_LIST: a namespace's topics, now and as they change."""

from typing import Final

from pybroker.base.errors import AuthorizationError, NotAllowed, TooManyRequests
from pybroker.broker.brokers.remote_namespaces import check_namespace
from pybroker.broker.namespaces.tenants import NotFound
from pybroker.broker.topic_lists.lists import TopicList
from pybroker.broker.topic_lists.pattern import BadPattern, TopicPattern
from pybroker.broker.topic_lists.watches import selected, steady_pace
from pybroker.server.connections.connection import Connection, Rest
from pybroker.server.topics.topic_list_watcher import Watcher
from pybroker.wire import commands
from pybroker.wire import pulsar_api_pb2 as pb

NO_TOPICS: Final = TopicList(())
MAX_WATCHERS: Final = 1000  # of one connection
_Mode = pb.CommandGetTopicsOfNamespace


# -- the list


def topics_of_namespace(
    session: Connection, command: pb.CommandGetTopicsOfNamespace
) -> Rest | None:
    """Answers with the topics that match a pattern if the broker supports it; otherwise with all
    topics, which the client filters.
    """
    try:
        found = session.services.topics.lists.known(command.namespace)
    except NotFound:  # as far as this broker knows
        found = None
    pattern = None
    if command.topics_pattern:
        try:
            pattern = _pattern(session, command.topics_pattern)
        except NotAllowed:
            pattern = None
    if found is None or pattern is not None:
        return _topics_once_found(session, command, pattern)
    _write_topics(session, command, _of_mode(found, command.mode))
    return None


async def _topics_once_found(
    session: Connection, command: pb.CommandGetTopicsOfNamespace, pattern: TopicPattern | None
) -> None:
    topics = session.services.topics
    try:
        await check_namespace(topics, command.namespace)
        found = await topics.lists.get(command.namespace)
    except NotFound:
        found = NO_TOPICS
    found = _of_mode(found, command.mode)
    if pattern is None:
        _write_topics(session, command, found)
        return
    chosen = TopicList(await selected(found.names, pattern, steady_pace()))
    changed = command.topics_hash != chosen.hash
    names = chosen.names if changed else ()
    answer = commands.encode_topics(names, chosen.hash, changed, filtered=True)
    session.write(commands.topics_of_namespace(command.request_id, answer))


def _write_topics(
    session: Connection, command: pb.CommandGetTopicsOfNamespace, found: TopicList
) -> None:
    if command.topics_hash == found.hash:
        answer = commands.encode_topics([], found.hash, changed=False)
    elif not found.names:  # perhaps the namespace does not exist
        answer = commands.encode_topics([], found.hash, changed=True)
    else:
        answer = session.services.encoded_topics(command.namespace, command.mode, found)
    session.write(commands.topics_of_namespace(command.request_id, answer))


def _of_mode(found: TopicList, mode: int) -> TopicList:
    found = found.of_users
    if mode == _Mode.ALL:
        return found
    return found.persistent if mode == _Mode.PERSISTENT else found.nonpersistent


def _pattern(session: Connection, text: str) -> TopicPattern:
    """Raises NotAllowed if patterns are switched off, or it is too long or does not parse."""
    config = session.services.config
    if not config.enable_broker_side_subscription_pattern_evaluation:
        raise NotAllowed(
            "Unable to create topic list watcher: Evaluating subscription patterns is disabled."
        )
    if len(text) > config.subscription_pattern_max_length:
        raise NotAllowed(
            "Unable to create topic list watcher: Pattern longer than maximum: "
            f"{config.subscription_pattern_max_length}"
        )
    try:
        return TopicPattern(text)
    except BadPattern as error:
        raise NotAllowed(f"Unable to create topic list watcher: {text!r}: {error}") from None


# -- watching the list


async def watch(session: Connection, command: pb.CommandWatchTopicList) -> None:
    """A repeated request with the same id replaces the watcher."""
    pattern = _pattern(session, command.topics_pattern)
    if session.closed:
        return  # nothing would end the watcher
    if (older := session.watchers.pop(command.watcher_id, None)) is not None:
        older.end()
    if len(session.watchers) >= MAX_WATCHERS:
        raise TooManyRequests(
            f"This connection already watches {MAX_WATCHERS} topic lists: close some"
        )
    watches = session.services.topics.watches
    watcher = Watcher(watches, session.write, command.watcher_id, command.namespace, pattern)
    session.watchers[command.watcher_id] = watcher
    try:
        await check_namespace(session.services.topics, command.namespace)
        found = await watcher.begin()
    except BaseException:
        session.watchers.pop(command.watcher_id, None)
        raise
    if session.watchers.get(command.watcher_id) is not watcher:  # ended before it began
        watcher.end()
        raise AuthorizationError(
            "Client is not authorized to WatchTopicList",
            f"the client may no longer watch {command.namespace}",
        )
    names = () if command.topics_hash == found.hash else found.names
    answer = pb.CommandWatchTopicListSuccess(
        request_id=command.request_id,
        watcher_id=command.watcher_id,
        topic=names,
        topics_hash=found.hash,
    )
    session.send_command(answer)


async def close_watch(session: Connection, command: pb.CommandWatchTopicListClose) -> None:
    watcher = session.watchers.pop(command.watcher_id, None)
    if watcher is not None:
        watcher.end()
    session.write(commands.success(command.request_id))
