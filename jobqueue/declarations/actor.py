"""Actors: tasks that are polled many times, with typed state, an inbox and children."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from traceback import format_exception_only
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Unpack
from uuid import UUID

import msgspec

from jobqueue.conf.compat import (
    InvalidTask,
    TaskResult,
)
from jobqueue.declarations.actions import Action, Kind, Message
from jobqueue.declarations.context import checked_progress, not_shown
from jobqueue.declarations.function import (
    Call,
    CommonOptions,
    FunctionTask,
    P,
    PlannedCall,
    R,
    invalid_declarations,
    unknown_option,
)
from jobqueue.values import typed
from jobqueue.values.arguments import read_signature

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
    The unread messages of a poll, in order of arrival. take() and popleft() consume messages.

    If messages stay unread, the task runs again: at once if the poll consumed a message or a new one came, otherwise
    after a short wait that doubles. Of a child that was requeued and has ended again, it has the last end only.
    """

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        unread = list(messages)
        ends = [message for message in unread if message.kind is not Kind.MESSAGE and message.sender is not None]
        last_ends = {message.sender: message.id for message in ends}
        # Ends that a later end of the same child has replaced. A successful poll consumes them, too.
        self.replaced = [message.id for message in ends if message.id != last_ends[message.sender]]
        self._unread = [m for m in unread if m.id not in self.replaced] if self.replaced else unread
        self._taken: list[Message] = []

    def __iter__(self) -> Iterator[Message]:
        return iter(tuple(self._unread))

    def __len__(self) -> int:
        return len(self._unread)

    @property
    def taken(self) -> tuple[Message, ...]:
        """The messages that this poll has consumed."""
        return tuple(self._taken)

    def take(self, *wanted: Kind | type | UnionType) -> list[Message]:
        """
        Consume the messages of these kinds, or with bodies of these types. Without arguments, consume all.

        Types are classes. Raises TypeError for others, such as a TypedDict or list[int]: pass dict or list.
        """
        kinds = tuple(w for w in wanted if isinstance(w, Kind))
        types = tuple(w for w in wanted if not isinstance(w, Kind))
        try:
            isinstance(object(), types)  # raises for an invalid type, also if the inbox is empty
        except TypeError as error:
            raise TypeError(f"take() needs a Kind or classes such as dict, not {types!r}: {error}") from None
        matching = [
            m
            for m in self._unread
            if not wanted or m.kind in kinds or (m.kind is Kind.MESSAGE and isinstance(m.body, types))
        ]
        gone = {m.id for m in matching}
        self._unread = [m for m in self._unread if m.id not in gone]
        self._taken += matching
        return matching

    def popleft(self) -> Message:
        """Consume the oldest message. Raises IndexError if there is none."""
        if not self._unread:
            raise IndexError("the inbox is empty")
        message = self._unread.pop(0)
        self._taken.append(message)
        return message


@dataclass(slots=True, kw_only=True)
class PollContext(Generic[S]):
    """The context of a poll."""

    state: S
    """Change it in place, or replace it. It is written when the poll's actions commit."""
    inbox: Inbox = field(default_factory=Inbox)  # the unread messages
    id: UUID | None = None  # of the task; None if a test made the context without one
    parent_id: UUID | None = None  # the task that started this one; None: no task
    key: str | None = None  # the unique key; None: none
    attempt: int = 1  # of this poll, the first is 1
    polls: int = 0  # that have succeeded before this one
    timed_out: bool = False
    """Whether a Sleep or a Suspend(timeout=...) ended before a message came."""
    schedule: str | None = None
    """The name of the schedule that enqueued the task; None for other tasks."""
    scheduled_at: datetime | None = None
    """The tick of the schedule that the task stands for; None for other tasks."""
    should_stop: Callable[[], bool] = bool  # whether the executor stops, or the task is to be cancelled
    make_result: Callable[[], Any] = lambda: None  # takes 7 us, so only on demand
    report: Callable[[float, float | None, str], None] = not_shown  # of progress: done, total or None, and a note

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report how much is done, as the context of a function does."""
        self.report(*checked_progress(done, total, note))

    @property
    def idempotency_key(self) -> str:
        """The same for each attempt of this poll."""
        return f"{self.id}:{self.polls}"

    @property
    def cancelled(self) -> bool:
        """Whether the body should stop."""
        return self.should_stop()

    @property
    def task_result(self) -> Any:
        """Django's TaskResult of this task."""
        return self.make_result()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledTask(FunctionTask[P, R], Generic[P, R]):
    """A task that runs many times, and reads messages: an actor or a workflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorTask(PolledTask[Any, Any]):
    """An actor class as a task. func: has the parameters of its poll, for enqueue()."""

    actor: type[Actor[Any]] = field(default=None, hash=False)  # type: ignore[assignment]


class ActorOptions(CommonOptions, total=False):
    """Keywords of an actor class."""

    abstract: bool


class Actor(Generic[S]):
    """
    A task that is polled many times, with state and an inbox.

    Write `poll(self, context, *args)`, plain or `async def`. `State` is the type of its state: a nested dataclass,
    TypedDict or msgspec Struct. Without it, the state is any JSON object. `Message` is the type of the bodies of its
    messages, or a union of types. In a union, Structs need tags and dataclasses a field `type: Literal["..."]`.
    Class keywords: name, aliases, queue_name, backend, priority, max_attempts, backoff, retry_on, give_up_on, timeout,
    allow_http, schedule, tags. Subclasses inherit them, without name and aliases. `abstract=True` makes a base class
    that is not a task.

    A poll returns or yields actions. The last one decides what the actor does next. A poll may also return a function.
    This runs in the committing transaction, with the task's row locked, and returns the actions.
    """

    State: ClassVar[Any] = dict
    Message: ClassVar[Any] = Any
    task: ClassVar[ActorTask]
    _options: ClassVar[ActorOptions] = {}

    def __init_subclass__(cls, **options: Unpack[ActorOptions]) -> None:
        super().__init_subclass__()
        try:
            if error := unknown_option(f"{cls.__name__}: an actor", "keyword", options, ActorOptions):
                raise error
            cls._declare(**options)
        except (InvalidTask, TypeError) as refusal:
            cls.task = invalid_declarations.placeholder_for(ActorTask, cls, refusal)

    @classmethod
    def _declare(cls, **options: Unpack[ActorOptions]) -> None:
        name, is_abstract = options.pop("name", None), options.pop("abstract", False)
        aliases = options.pop("aliases", ())
        cls._options = options
        if is_abstract:
            return
        _check(cls)
        inherited: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            inherited |= vars(base).get("_options", {})
        own: dict[str, Any] = {"name": name, "aliases": aliases, "takes_context": False}
        cls.task = ActorTask(func=_enqueue_signature(cls), actor=cls, **own, **inherited)

    def poll(self, context: PollContext[S], *args: Any, **kwargs: Any) -> PollResult | Awaitable[PollResult]:
        """Do a part of the work and return actions."""
        raise NotImplementedError(f"{type(self).__name__} has no poll().")

    @classmethod
    def using(cls, **options: Any) -> FunctionTask[Any, Any]:
        """Return a task with other options, as FunctionTask.using()."""
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
    def plan(cls, *args: Any, **kwargs: Any) -> PlannedCall:
        """Plan a call, as FunctionTask.plan()."""
        return cls.task.plan(*args, **kwargs)

    @classmethod
    def plan_only(cls, *args: Any, **kwargs: Any) -> PlannedCall:
        """Plan a call, as FunctionTask.plan_only()."""
        return cls.task.plan_only(*args, **kwargs)

    @classmethod
    def get_result(cls, result_id: str) -> TaskResult[..., Any]:
        """Return an actor's result. Raises TaskResultDoesNotExist, or TaskResultMismatch for another task's id."""
        return cls.task.get_result(result_id)

    @classmethod
    async def aget_result(cls, result_id: str) -> TaskResult[..., Any]:
        """See get_result()."""
        return await cls.task.aget_result(result_id)

    @classmethod
    def decode_state(cls, text: str | None) -> Any:
        """Return the state of a row, or a new one. Raises ValueError if it does not fit `State`."""
        if text is not None:
            return typed.decode_typed(text, cls.State)
        return {} if _is_plain(cls.State) else cls.State()

    @classmethod
    def encode_state(cls, state: Any) -> Any:
        """Return the state in JSON's own types. Raises ValueError if the next poll could not read it."""
        try:
            value = msgspec.to_builtins(state, str_keys=True)
        except RecursionError:
            raise ValueError(f"{cls.__name__}: the state contains itself, or is nested too deep for JSON") from None
        except TypeError as error:
            raise ValueError(f"{cls.__name__}: the state is not JSON: {error}") from error
        try:
            msgspec.convert(value, cls.State, str_keys=True)
        except msgspec.ValidationError as error:
            raise ValueError(f"The state is not what {cls.__name__}.State allows: {error}") from error
        return value

    @classmethod
    def decode_body(cls, text: str) -> Any:
        """Return the body of a message. Raises ValueError if it does not fit `Message`."""
        try:
            return typed.decode_typed(text, cls.Message)
        except ValueError:
            raise
        except Exception as error:  # for example of a __post_init__
            raise ValueError("".join(format_exception_only(error)).strip()) from error


def _is_plain(state: Any) -> bool:
    return state in (dict, Any) or getattr(state, "__origin__", None) is dict or hasattr(state, "__total__")


def _check(cls: type[Actor[Any]]) -> None:
    if not inspect.isfunction(cls.poll) or cls.poll is Actor.poll:
        raise InvalidTask(f"{cls.__name__}: an actor needs a method poll(self, context, ...).")
    parameters = list(read_signature(cls.poll).parameters)
    if len(parameters) < 2 or parameters[1] != "context":
        raise InvalidTask(f"{cls.__name__}: poll's second parameter must be called 'context', after self.")
    if inspect.isasyncgenfunction(cls.poll):
        raise InvalidTask(f"{cls.__name__}: an async poll returns its actions; it cannot yield them.")
    for name in ("State", "Message"):
        match reading_error(cls, name):
            case NameError(name=missing) if missing in vars(cls):
                raise InvalidTask(
                    f"{cls.__name__}: {name} has an annotation {missing!r}, which Python searches in the module, not "
                    f"in the class: write '{cls.__name__}.{missing}'."
                )
            case TypeError() as error:
                raise InvalidTask(f"{cls.__name__}: {name} cannot be read from JSON: {error}") from error
    if not _is_plain(cls.State) and (missing := _missing(cls.State)):
        raise InvalidTask(f"{cls.__name__}: a new actor starts with State(), so its fields need defaults: {missing}.")


def reading_error(cls: type[Actor[Any]], name: str) -> TypeError | NameError | None:
    """Return why State or Message cannot be read. A NameError may name a class further down in the module."""
    try:
        typed.choose_reading(getattr(cls, name))
    except (TypeError, NameError) as error:
        return error
    return None


def _missing(state: Any) -> str:
    """Return why State() cannot be called, or an empty text."""
    try:
        read_signature(state).bind()
    except ValueError:  # a builtin
        return ""
    except TypeError as error:
        return str(error)
    return ""


def _enqueue_signature(cls: type[Actor[Any]]) -> Callable[..., Any]:
    """Return the function that django.tasks takes for the task, with poll's parameters and the class's name."""

    def signature_source(*args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"{cls.__name__} is an actor. Enqueue it in a jobqueue backend; an executor or jobqueue.testing polls it."
        )

    async def async_signature_source(*args: Any, **kwargs: Any) -> Any:
        return signature_source(*args, **kwargs)

    function: Any = async_signature_source if inspect.iscoroutinefunction(cls.poll) else signature_source
    signature = read_signature(cls.poll)
    function.__signature__ = signature.replace(parameters=list(signature.parameters.values())[2:])
    function.__module__, function.__qualname__, function.__name__ = cls.__module__, cls.__qualname__, cls.__name__
    function.__doc__ = cls.__doc__
    return function  # type: ignore[no-any-return]
