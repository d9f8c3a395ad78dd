"""Actors: tasks that are polled many times over a long life, with typed state, an inbox and children."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from traceback import format_exception_only
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Generic
from uuid import UUID

import msgspec
from django.utils.module_loading import import_string

from jobqueue.actions import Action, Kind, Message
from jobqueue.backoff import Backoff
from jobqueue.compat import (
    DEFAULT_TASK_BACKEND_ALIAS,
    DEFAULT_TASK_PRIORITY,
    DEFAULT_TASK_QUEUE_NAME,
    BaseTaskBackend,
    InvalidTask,
    TaskResult,
)
from jobqueue.function import Call, FunctionTask
from jobqueue.serialization import typed
from jobqueue.serialization.arguments import signature_of

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    S = TypeVar("S", default=Any)  # a class without a State of its own is written `class Album(Actor)`
else:
    from typing import TypeVar

    S = TypeVar("S")
Actions = Action | Iterable[Action] | None
PollResult = Actions | Callable[[], Actions]


class Inbox:
    """
    The unread messages of a poll, in order of arrival. What take() and popleft() give is consumed.

    What is left unread makes the task run again: at once when something was consumed or newer mail
    came, otherwise after a short wait that doubles.
    """

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._unread = list(messages)
        self._taken: list[Message] = []

    def __iter__(self) -> Iterator[Message]:
        return iter(tuple(self._unread))

    def __len__(self) -> int:
        return len(self._unread)

    @property
    def taken(self) -> tuple[Message, ...]:
        """What this poll has consumed so far."""
        return tuple(self._taken)

    def take(self, *wanted: Kind | type | UnionType) -> list[Message]:
        """
        Consume the messages of these kinds, or of kind MESSAGE whose bodies are of these types; all without any.

        Types are classes: raises TypeError for a TypedDict, or list[int], whose bodies are of dict and list.
        """
        kinds = tuple(w for w in wanted if isinstance(w, Kind))
        types = tuple(w for w in wanted if not isinstance(w, Kind))
        try:
            isinstance(object(), types)  # whatever mail there is today
        except TypeError as error:
            raise TypeError(f"take() goes by Kind and by classes such as dict, not by {types!r}: {error}") from None
        chosen = [
            m
            for m in self._unread
            if not wanted or m.kind in kinds or (m.kind is Kind.MESSAGE and isinstance(m.body, types))
        ]
        gone = {m.id for m in chosen}
        self._unread = [m for m in self._unread if m.id not in gone]
        self._taken += chosen
        return chosen

    def popleft(self) -> Message:
        """Consume the oldest message. Raises IndexError when there is none."""
        if not self._unread:
            raise IndexError("the inbox is empty")
        message = self._unread.pop(0)
        self._taken.append(message)
        return message


@dataclass(slots=True, kw_only=True)
class PollContext(Generic[S]):
    """
    What a poll sees and changes.

    state: mutated in place (or replaced); written when the poll's actions commit. timed_out: a Sleep or
    a Suspend(timeout=...) has run its time, and no message came before. idempotency_key: the same for every
    try of this poll. cancelled: whether the body was told to stop.
    """

    state: S
    inbox: Inbox = field(default_factory=Inbox)
    id: UUID | None = None
    parent_id: UUID | None = None
    key: str | None = None
    attempt: int = 1
    polls: int = 0
    timed_out: bool = False
    should_stop: Callable[[], bool] = bool
    make_result: Callable[[], Any] = lambda: None  # 7 us, so not before somebody asks

    @property
    def idempotency_key(self) -> str:
        return f"{self.id}:{self.polls}"

    @property
    def cancelled(self) -> bool:
        return self.should_stop()

    @property
    def task_result(self) -> Any:
        """Django's TaskResult of this task."""
        return self.make_result()


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorTask(FunctionTask[Any, Any]):
    """An actor class as a task: `func` stands for its poll, with the parameters that enqueue() takes."""

    actor: type[Actor[Any]] = field(default=None, hash=False)  # type: ignore[assignment]

    def _taker(self) -> BaseTaskBackend:
        """
        Give the backend. Raises InvalidTask for one that is not ours: it cannot poll.

        Not before the actor is enqueued: the settings of a site's tests may name Django's ImmediateBackend.
        """
        backend = self.get_backend()
        if not issubclass(backend.task_class, FunctionTask):
            raise InvalidTask(
                f"{self.actor.__name__}: actors need a backend of jobqueue; TASKS[{self.backend!r}] is another."
            )
        return backend

    def __reduce__(self) -> tuple[Any, ...]:
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("func", "actor")}
        return _rebuild, (type(self), self.module_path, values)


def _rebuild(cls: type[ActorTask], path: str, values: dict[str, Any]) -> ActorTask:
    declared = import_string(path).task
    return cls(**values, func=declared.func, actor=declared.actor)


class Actor(Generic[S]):
    """
    A pollable coroutine.

    Write `poll(self, context, *args)`, plain or `async def`. `State`, a nested dataclass, TypedDict or msgspec
    Struct, is its memory (any JSON object when there is none); `Message`, a type or union of types, decodes
    the bodies of its messages: of a union, Structs are told apart by their tags, dataclasses by a field
    `type: Literal["..."]`. Class keywords: name, queue_name, backend, priority, max_attempts, backoff,
    retry_on, give_up_on, timeout, submit; subclasses have all but the name of them too, unless they say otherwise.
    `abstract=True` makes a base of other actors that is none itself.

    A poll returns an action or several, or yields them; the last one decides. Or it returns a function, which
    runs inside the committing transaction with the task's row locked, and returns the actions.
    """

    State: ClassVar[Any] = dict
    Message: ClassVar[Any] = Any
    task: ClassVar[ActorTask]
    _given: ClassVar[dict[str, Any]] = {
        "queue_name": DEFAULT_TASK_QUEUE_NAME,
        "backend": DEFAULT_TASK_BACKEND_ALIAS,
        "priority": DEFAULT_TASK_PRIORITY,
    }

    def __init_subclass__(
        cls,
        *,
        name: str | None = None,
        queue_name: str | None = None,
        backend: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        retry_on: Any = None,
        give_up_on: Any = None,
        timeout: float | timedelta | None = None,
        allow_http: bool | None = None,
        abstract: bool = False,
        **rest: Any,
    ) -> None:
        given = {
            "queue_name": queue_name,
            "backend": backend,
            "priority": priority,
            "max_attempts": max_attempts,
            "backoff": backoff,
            "retry_on": retry_on,
            "give_up_on": give_up_on,
            "timeout": timeout,
            "allow_http": allow_http,
        }
        if rest and not any("__init_subclass__" in vars(base) for base in cls.__mro__ if base not in WITHOUT_KEYWORDS):
            known = ", ".join(["name", *given, "abstract"])
            raise TypeError(f"{cls.__name__}: an actor takes no keyword {next(iter(rest))!r}; it takes {known}")
        super().__init_subclass__(**rest)
        cls._given = {option: value for option, value in given.items() if value is not None}
        if name == "":
            raise InvalidTask(f"{cls.__name__}: name must be a text of 1 to 500 characters; leave it out for none.")
        if abstract:
            if name:
                raise InvalidTask(f"{cls.__name__}: an abstract actor is never enqueued, and has no name.")
            return
        _check(cls)
        options: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            options |= vars(base).get("_given", {})
        cls.task = ActorTask(
            func=_stand_in(cls), actor=cls, name=name or "", run_after=None, takes_context=False, **options
        )

    def poll(self, context: PollContext[S], *args: Any, **kwargs: Any) -> PollResult | Awaitable[PollResult]:
        """Do a bit of work; say what comes next."""
        raise NotImplementedError(f"{type(self).__name__} has no poll().")

    @classmethod
    def using(cls, **options: Any) -> FunctionTask[Any, Any]:
        """Make a task with other options, as FunctionTask.using()."""
        return cls.task.using(**options)

    @classmethod
    def enqueue(cls, *args: Any, **kwargs: Any) -> TaskResult[..., Any]:
        """Start an actor in the caller's transaction, as FunctionTask.enqueue()."""
        return cls.task.enqueue(*args, **kwargs)

    @classmethod
    async def aenqueue(cls, *args: Any, **kwargs: Any) -> TaskResult[..., Any]:
        """See enqueue()."""
        return await cls.task.aenqueue(*args, **kwargs)

    @classmethod
    def enqueue_many(cls, calls: Iterable[Call]) -> Sequence[TaskResult[..., Any]]:
        """Start one actor per (args, kwargs), as FunctionTask.enqueue_many()."""
        return cls.task.enqueue_many(calls)

    @classmethod
    async def aenqueue_many(cls, calls: Iterable[Call]) -> Sequence[TaskResult[..., Any]]:
        """See enqueue_many()."""
        return await cls.task.aenqueue_many(calls)

    @classmethod
    def get_result(cls, result_id: str) -> TaskResult[..., Any]:
        """Give an actor's result by its id. Raises TaskResultDoesNotExist, TaskResultMismatch for another task's."""
        return cls.task.get_result(result_id)

    @classmethod
    async def aget_result(cls, result_id: str) -> TaskResult[..., Any]:
        """See get_result()."""
        return await cls.task.aget_result(result_id)

    @classmethod
    def decode_state(cls, text: str | None) -> Any:
        """Give the state a row holds, or a fresh one. Raises ValueError when it does not fit `State`."""
        if text is not None:
            return typed.decode(text, cls.State)
        return {} if _is_plain(cls.State) else cls.State()

    @classmethod
    def encode_state(cls, state: Any) -> Any:
        """Give the state as JSON's own types. Raises ValueError when the next poll could not read it."""
        try:
            value = msgspec.to_builtins(state, str_keys=True)
        except RecursionError:
            raise ValueError(f"{cls.__name__}: the state holds itself, or is nested too deep for JSON") from None
        except TypeError as error:
            raise ValueError(f"{cls.__name__}: the state is not JSON: {error}") from error
        try:
            msgspec.convert(value, cls.State, str_keys=True)
        except msgspec.ValidationError as error:
            raise ValueError(f"The state is not what {cls.__name__}.State allows: {error}") from error
        return value

    @classmethod
    def decode_body(cls, text: str) -> Any:
        """Give the body of a message. Raises ValueError when it does not fit `Message`, whatever that type raised."""
        try:
            return typed.decode(text, cls.Message)
        except ValueError:
            raise
        except Exception as error:  # of a __post_init__, say
            raise ValueError("".join(format_exception_only(error)).strip()) from error


WITHOUT_KEYWORDS = (Actor, Generic, object)  # beside Actor's own; a mixin may have some


def _is_plain(state: Any) -> bool:
    return state in (dict, Any) or getattr(state, "__origin__", None) is dict or hasattr(state, "__total__")


def _check(cls: type[Actor[Any]]) -> None:
    if not inspect.isfunction(cls.poll) or cls.poll is Actor.poll:
        raise InvalidTask(f"{cls.__name__}: an actor needs a method poll(self, context, ...).")
    parameters = list(signature_of(cls.poll).parameters)
    if len(parameters) < 2 or parameters[1] != "context":
        raise InvalidTask(f"{cls.__name__}: poll's second parameter must be called 'context', after self.")
    if inspect.isasyncgenfunction(cls.poll):
        raise InvalidTask(f"{cls.__name__}: an async poll returns its actions; it cannot yield them.")
    for name in ("State", "Message"):
        match unreadable(cls, name):
            case NameError(name=missing) if missing in vars(cls):
                raise InvalidTask(
                    f"{cls.__name__}: {name} has an annotation {missing!r}, which Python looks for in the module, not "
                    f"in the class: write '{cls.__name__}.{missing}'."
                )
            case TypeError() as error:
                raise InvalidTask(f"{cls.__name__}: {name} is no type that JSON can be read into: {error}") from error
    if not _is_plain(cls.State) and (missing := _missing(cls.State)):
        raise InvalidTask(f"{cls.__name__}: a new actor remembers State(), so give its fields defaults: {missing}.")


def unreadable(cls: type[Actor[Any]], name: str) -> TypeError | NameError | None:
    """Say why State or Message cannot be read; a NameError may be cured further down in the module."""
    try:
        typed.reading_of(getattr(cls, name))
    except (TypeError, NameError) as error:
        return error
    return None


def _missing(state: Any) -> str:
    """Say why State() cannot be; empty where it can, or where nobody knows without a try."""
    try:
        signature_of(state).bind()
    except ValueError:  # a builtin
        return ""
    except TypeError as error:
        return str(error)
    return ""


def _stand_in(cls: type[Actor[Any]]) -> Callable[..., Any]:
    """Make the function that django.tasks takes for the task: poll's parameters, the class's name."""

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"{cls.__name__} is an actor: it is enqueued, and polled by an executor or by jobqueue.testing."
        )

    async def astand_in(*args: Any, **kwargs: Any) -> Any:
        return stand_in(*args, **kwargs)

    chosen: Any = astand_in if inspect.iscoroutinefunction(cls.poll) else stand_in
    signature = signature_of(cls.poll)
    chosen.__signature__ = signature.replace(parameters=list(signature.parameters.values())[2:])
    chosen.__module__, chosen.__qualname__, chosen.__name__ = cls.__module__, cls.__qualname__, cls.__name__
    chosen.__doc__ = cls.__doc__
    return chosen  # type: ignore[no-any-return]
