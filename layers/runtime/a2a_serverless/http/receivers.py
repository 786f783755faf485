"""The push configurations of a task, and the public keys for their receivers.

Token and credentials are stored and never returned. Clients see a configuration's ids, its URL and
its authentication scheme. A client that replaces a configuration has to send the secrets again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from a2a.types import (
    AgentCard,
    AuthenticationInfo,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from a2a.utils.constants import PROTOCOL_VERSION_0_3
from a2a.utils.errors import InvalidParamsError, PushNotificationNotSupportedError
from starlette.requests import Request
from starlette.responses import JSONResponse

from a2a_serverless.addresses import AllowedHosts, check_receiver
from a2a_serverless.cached import Cached
from a2a_serverless.clock import Clock
from a2a_serverless.errors import (
    InvalidArgumentError,
    PageTokenError,
    TaskNotFoundError,
    UnavailableError,
    WebhooksFullError,
)
from a2a_serverless.http.context import CallContext, check_required, in_dialect
from a2a_serverless.http.errors import http_error, invalid_params
from a2a_serverless.settings import Settings
from a2a_serverless.storage.allowance import Allowance
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.keys import JWKS_MAX_AGE_S, KeyStore
from a2a_serverless.storage.listing import page_place, page_token
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import is_task_id
from a2a_serverless.tasks.push import Push, inline_id, problems
from a2a_serverless.tasks.rules import check_writable
from a2a_serverless.wiring import Backends

_INLINE = "configuration.taskPushNotificationConfig."

_PUSH_SCHEMES = ("Basic", "Bearer")
"""Schemes of HTTP authentication for receivers; case does not matter (RFC 9110, section 11.1).

The protocol asks for schemes of IANA's registry. These are the ones whose credentials are a fixed
text. The others answer a challenge or sign each request, for which the values of a configuration
are not enough.
"""

_KEPT_S = 60.0
_PAUSE_S = 1.0
"""The least time between two reads of the store: the path is public."""


class Receivers:
    """The receivers of the caller's tasks (A2A 1.0.1, sections 3.1.7 to 3.1.10).

    Every operation raises PushNotificationNotSupportedError if the card does not offer push
    (section 3.3.4), and TaskNotFoundError for a task that the caller does not see.

    Raises:
        ConfigurationError: A2A_PUSH_ALLOWED_HOSTS cannot be read.
    """

    def __init__(self, backends: Backends, card: AgentCard, settings: Settings) -> None:
        self._backends = backends
        self._card = card
        self._allowed = AllowedHosts.parse(settings.push_allowed_hosts)
        self._open = Allowance(settings.webhooks_per_caller)

    async def create(
        self, config: TaskPushNotificationConfig, context: CallContext
    ) -> TaskPushNotificationConfig:
        """Register a receiver, or replace the one with the same id; make an id if there is none.

        It is notified of what is committed from now on. If the task has ended by then, or waits for
        its client, it is told so (section 4.3.3).

        Raises:
            InvalidParamsError: names each field that cannot be used; nothing was stored.
            WebhooksFullError: the caller has too many webhooks; nothing was stored.
            NewerReleaseError: only a newer release may write the task; nothing was stored.
        """
        _check_push(self._card)
        _check_config(config, context)
        storage, head = await self._storage_with(config.task_id, context)
        check_writable(head)
        await self._check_url(config.url, context)
        await self._check_room(storage, config.task_id, config.id)
        return _without_secrets(await storage.webhooks.put(config, context.dialect), context)

    async def get(
        self, request: GetTaskPushNotificationConfigRequest, context: CallContext
    ) -> TaskPushNotificationConfig:
        """Return one configuration; for a client of 0.3 that names none, the first one.

        Raises:
            TaskNotFoundError: the configuration does not exist (section 3.1.8).
            UnreadableTaskError: the configuration is damaged.
        """
        _check_push(self._card)
        storage = self._storage(context)
        if not request.id and context.dialect == PROTOCOL_VERSION_0_3:
            push = next(iter(await storage.webhooks.all(request.task_id)), None)
        else:
            check_required(request, context.dialect)
            push = await storage.webhooks.get(request.task_id, request.id)
        if push is None:
            raise TaskNotFoundError("There is no such task, or it has no such push configuration.")
        return _without_secrets(push, context)

    async def list(
        self, request: ListTaskPushNotificationConfigsRequest, context: CallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """List the task's configurations by id; all of them unless `page_size` limits them.

        A damaged configuration is left out.

        Raises:
            InvalidArgumentError: a negative page size.
            PageTokenError: the token is not one of ours.
        """
        _check_push(self._card)
        if request.page_size < 0:
            raise InvalidArgumentError("pageSize must be 0 (all) or more.", "pageSize")
        after = _place(request.page_token)
        storage, _ = await self._storage_with(request.task_id, context)
        pushes = await storage.webhooks.all(request.task_id)
        configs = [_without_secrets(push, context) for push in pushes if push.config.id > after]
        page = configs[: request.page_size or len(configs)]
        is_last = len(page) == len(configs)
        return ListTaskPushNotificationConfigsResponse(
            configs=page, next_page_token="" if is_last else page_token(page[-1].id)
        )

    async def delete(
        self, request: DeleteTaskPushNotificationConfigRequest, context: CallContext
    ) -> None:
        """Forget a configuration; do nothing if it does not exist (section 3.1.10)."""
        _check_push(self._card)
        storage, _ = await self._storage_with(request.task_id, context)
        # No fence: a delivery that is under way moves its cursor only where the item still is, and
        # so cannot bring it back.
        await storage.webhooks.delete(request.task_id, request.id)

    async def check_inline(self, request: SendMessageRequest, context: CallContext) -> None:
        """Check the configuration that comes with a message, before the message is accepted.

        Raises:
            InvalidParamsError: names each field that cannot be used.
            WebhooksFullError: the caller has too many webhooks.
            TaskNotFoundError: the message names a task that the caller does not see.
            InvalidArgumentError: the message would open a task in a tenant of others.
        """
        _check_push(self._card)
        config = request.configuration.task_push_notification_config
        _check_config(config, context, at=_INLINE)
        task_id = request.message.task_id
        if config.task_id not in ("", task_id):
            problem = "It must be absent or name the message's task."
            raise _refused_config([("taskId", problem)], context, at=_INLINE)
        # First the task: the host is not looked up if the caller cannot see or open the task.
        if task_id:
            await self._storage_with(task_id, context)
        else:
            context.check_may_open()
        # A message is not refused because a name server does not answer.
        await self._check_url(config.url, context, at=_INLINE, must_resolve=False)
        await self._check_room(self._storage(context), task_id, inline_id(config))

    async def _check_room(self, storage: DurableStorage, task_id: str, config_id: str) -> None:
        """Refuse a webhook if the caller has as many as it may have; one that it has may be set."""
        caller, now_ms = storage.scope.principal, storage.clock.now_ms()
        if await self._open.admits(caller, now_ms, storage.webhooks.count_open):
            return
        if not task_id or await storage.webhooks.get(task_id, config_id) is None:
            raise WebhooksFullError(self._open.most)

    async def _check_url(
        self, url: str, context: CallContext, *, at: str = "", must_resolve: bool = True
    ) -> None:
        try:
            await check_receiver(url, self._allowed, must_resolve=must_resolve)
        except InvalidArgumentError as error:
            raise _refused_config([("url", str(error))], context, at=at) from error

    def _storage(self, context: CallContext) -> DurableStorage:
        return self._backends.storage.for_scope(context.scope)

    async def _storage_with(
        self, task_id: str, context: CallContext
    ) -> tuple[DurableStorage, Head]:
        storage = self._storage(context)
        head = await storage.head(task_id)
        if head is None:
            raise TaskNotFoundError
        return storage, head


def _without_secrets(push: Push, context: CallContext) -> TaskPushNotificationConfig:
    """Return a configuration without its secrets.

    It is copied field by field, so that a field that the protocol adds later is not returned by
    accident.
    """
    config, authentication = push.config, None
    if config.HasField("authentication"):
        authentication = AuthenticationInfo(scheme=config.authentication.scheme)
    return TaskPushNotificationConfig(
        tenant=context.tenant,
        id=config.id,
        task_id=config.task_id,
        url=config.url,
        authentication=authentication,
    )


def _place(token: str) -> str:
    """Return the id after which a page begins.

    Raises:
        PageTokenError: the token is not one of ours.
    """
    if not token:
        return ""
    place = page_place(token)
    if not isinstance(place, str) or not is_task_id(place):
        raise PageTokenError
    return place


def _check_push(card: AgentCard) -> None:
    """Refuse push notifications that the card does not offer (section 3.3.4)."""
    if not card.capabilities.push_notifications:
        raise PushNotificationNotSupportedError(message="The agent sends no push notifications.")


def _check_config(
    config: TaskPushNotificationConfig, context: CallContext, *, at: str = ""
) -> None:
    """Refuse a push configuration that cannot make a valid request; do not look up its URL.

    `at` is its place in the request: the prefix of its fields' names.

    Raises:
        InvalidParamsError: names each such field, but not its value, which may be a secret.
    """
    found = [*problems(config), *_scheme_problems(config)]
    if found:
        raise _refused_config(found, context, at=at)


def _refused_config(
    found: Iterable[tuple[str, str]], context: CallContext, *, at: str = ""
) -> InvalidParamsError:
    of = SendMessageRequest if at else TaskPushNotificationConfig
    problems = [
        (in_dialect(f"{at}{field}", of, context.dialect), _sentence(why)) for field, why in found
    ]
    first = ": ".join(problems[0])
    return invalid_params(f"The push configuration cannot be used: {first}", *problems)


def _scheme_problems(config: TaskPushNotificationConfig) -> Iterator[tuple[str, str]]:
    scheme = config.authentication.scheme
    if scheme and scheme.lower() not in {known.lower() for known in _PUSH_SCHEMES}:
        yield "authentication.scheme", f"is one of {', '.join(_PUSH_SCHEMES)}"


def _sentence(why: str) -> str:
    return f"{why[:1].upper()}{why[1:].rstrip('.')}."


class KeySet:
    """Serves the JWK set (RFC 7517, section 5), which holds no private key.

    Receivers may keep it for `JWKS_MAX_AGE_S`, and this process keeps it for less. A new key signs
    only after both times. The very first key signs at once, because an empty set is not kept.
    """

    def __init__(self, keys: KeyStore, clock: Clock) -> None:
        self._document = Cached(
            "The key set",
            keys.jwks,
            clock=clock,
            max_age_s=_KEPT_S,
            pause_s=_PAUSE_S,
            keep_s=JWKS_MAX_AGE_S,
        )

    async def answer(self, _: Request) -> JSONResponse:
        """Return the set; 503 when the store has not answered for `JWKS_MAX_AGE_S`."""
        try:
            document = await self._document.get()
            if not document["keys"]:
                document = await self._document.newer()
        except UnavailableError:
            return http_error(503, "UNAVAILABLE", "The keys cannot be read; try again later.")
        cached = f"public, max-age={JWKS_MAX_AGE_S}" if document["keys"] else "no-store"
        return JSONResponse(document, headers={"Cache-Control": cached})
