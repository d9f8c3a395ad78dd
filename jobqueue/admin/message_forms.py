"""Forms for the messages that an actor takes, or that a workflow waits for: one for each class."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
from django.utils.translation import gettext as _

from jobqueue.admin.argument_fields import ArgumentsForm
from jobqueue.declarations.actor import Actor
from jobqueue.exceptions import InvalidArguments
from jobqueue.values.arguments import Parameters
from jobqueue.values.json import encode_message
from jobqueue.values.message_types import MEMBER, Unfit, names_of, read_message

REQUIRED = inspect.Parameter.empty


class _NoValue:
    """The default of a field that a message may lack."""

    def __repr__(self) -> str:
        return _("no value")


NO_VALUE = _NoValue()


class Field(NamedTuple):
    """A field of a message."""

    name: str  # of the member
    kind: Any  # its type
    default: Any = REQUIRED  # REQUIRED if it has none


@dataclass(frozen=True)
class MessageKind:
    """One class of messages."""

    name: str  # of the class
    description: str  # its docstring
    signature: inspect.Signature  # of its constructor, without the constants
    constants: Mapping[str, Any]  # what each message of it contains, such as its tag
    member: Any = None  # the class, if messages are checked by it alone: of a workflow

    def form(self, data: Mapping[str, Any] | None = None) -> MessageKindForm:
        return MessageKindForm(data, kind=self)

    def check(self, body: Any, max_bytes: int) -> None:
        """Raise ValueError for a body that is not of the class."""
        if self.member is not None and isinstance(
            read := read_message(encode_message(body, max_bytes=max_bytes), [self.member]), Unfit
        ):
            raise InvalidArguments(_("Not valid: %(problem)s.") % {"problem": read.problem})


class MessageKindForm(ArgumentsForm):
    """The fields of one class of messages."""

    def __init__(self, data: Mapping[str, Any] | None, *, kind: MessageKind) -> None:
        self.kind = kind
        parameters = Parameters(
            kind.signature, positional=(), variable=None, min_positional=0, context=None, is_context_positional=True
        )
        super().__init__(data, parameters=parameters, stored=None, patterns=(), typed=None, prefix=kind.name)

    @property
    def body(self) -> dict[str, Any]:
        """The message of a valid form."""
        return {**self.call()[1], **self.kind.constants}


def list_kinds(actor: type[Actor[Any]]) -> list[MessageKind]:
    """Return the classes of messages that an actor takes. Other types, such as str, are written as JSON."""
    message = actor.Message
    members = get_args(message) if isinstance(message, UnionType) or get_origin(message) is Union else (message,)
    kinds = [_make_kind(member) for member in members if isinstance(member, type)]
    return [kind for kind in kinds if kind is not None]


def list_kinds_of_wait(function: Callable[..., Any], names: Sequence[str]) -> list[MessageKind]:
    """Return the classes of messages that end a wait of a workflow, as its module knows them."""
    members = inspect.unwrap(function).__globals__ if names else {}
    kinds = []
    for name in names:
        member = next((member for member in members.values() if _is_named(member, name)), None)
        kind = _make_kind(member) if member is not None else None
        if kind is not None:
            kinds.append(replace(kind, constants={MEMBER: name, **kind.constants}, member=member))
    return kinds


def _is_named(member: Any, name: str) -> bool:
    try:
        return isinstance(member, type) and name in names_of(member)
    except TypeError:  # a class that no message can have
        return False


def _make_kind(member: Any) -> MessageKind | None:
    """Return a class as a kind of message; None if it is no class with fields, or one that forms cannot show."""
    try:
        fields = list(_list_fields(member))
        constants: dict[str, Any] = {
            member_field.name: only for member_field in fields if (only := _constant(member_field.kind)) is not None
        }
        config = getattr(member, "__struct_config__", None)
        if config is not None and config.tag is not None:
            constants[config.tag_field] = config.tag
        parameters = [
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.kind)
            for field in fields
            if field.name not in constants
        ]
        signature = inspect.Signature(parameters)
    except Exception:  # noqa: BLE001 - of annotations, factories and names of the site's classes
        return None
    description = next(iter((inspect.getdoc(member) or "").splitlines()), "")
    has_own_text = description and not description.startswith(f"{member.__name__}(")  # dataclasses write their own
    return MessageKind(member.__name__, description if has_own_text else "", signature, constants)


def _list_fields(member: Any) -> Iterator[Field]:
    """Yield the fields of a Struct, a dataclass or a TypedDict. Raises TypeError for other classes."""
    if is_typeddict(member):
        for name, kind in get_type_hints(member).items():
            yield Field(name, kind, REQUIRED if name in member.__required_keys__ else NO_VALUE)
    elif dataclasses.is_dataclass(member):
        kinds = get_type_hints(member)
        for member_field in dataclasses.fields(member):
            yield Field(
                member_field.name,
                kinds[member_field.name],
                _default(member_field.default, member_field.default_factory, dataclasses.MISSING),
            )
    elif issubclass(member, msgspec.Struct) and not member.__struct_config__.array_like:
        for info in msgspec.structs.fields(member):
            default = _default(info.default, info.default_factory, msgspec.NODEFAULT)
            yield Field(info.encode_name, info.type, default)
    else:
        raise TypeError(f"{member} has no fields.")


def _default(default: Any, factory: Any, missing: Any) -> Any:
    if default is not missing:
        return NO_VALUE if default is msgspec.UNSET else default
    return REQUIRED if factory is missing else factory()


def _constant(kind: Any) -> str | None:
    """Return the only value of a type, or None."""
    values = get_args(kind) if get_origin(kind) is Literal else ()
    return values[0] if len(values) == 1 and isinstance(values[0], str) else None
