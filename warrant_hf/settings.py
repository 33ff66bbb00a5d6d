"""Settings as people write them: YAML, and complaints that name field, value and remedy."""

from __future__ import annotations

import re
import typing

import pydantic

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+\Z")
_BOOLEAN = re.compile(r"(true|True|TRUE|false|False|FALSE)\Z")


def parse_yaml(text: str):
    """YAML in which `1e-4` is a number and `no` is a text, as in version 1.2; PyYAML reads version 1.1.

    Raises:
        ValueError: it is not YAML, with the reason as part of a sentence.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = {
            first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":bool")]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    Loader.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOLEAN, list("tTfF"))
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)
        raise ValueError(f"line {place.line + 1}" if place else "a control character") from None
    except RecursionError:
        raise ValueError("nested too deep") from None
    # A date that does not exist, or a number of thousands of digits, is a ValueError of Python with its reason.


def first_complaint(error: pydantic.ValidationError) -> str:
    """The first complaint as a sentence: field, value, what it should be."""
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return f"{place} is not a field of a recipe; remove it."
    message = _lowered(first["msg"].removeprefix("Value error, "))
    return f"{place} is {_shown(first['input'])}: {message}; correct it." if place else f"{message}."


def training_fields(given: dict, arguments_class: type) -> dict:
    """The recipe's `training` with values of the right types: transformers stumbles over others at their first use.

    Raises:
        ValueError: a field that the class has not, or a value of another type.
    """
    types, fields = typing.get_type_hints(arguments_class), {}
    for name, value in given.items():
        if name not in types or name == "output_dir":
            raise ValueError(f"training.{name} is not a field of {arguments_class.__name__} to be set; remove it.")
        try:
            fields[name] = pydantic.TypeAdapter(types[name]).validate_python(value)
        except pydantic.ValidationError as error:
            message = _lowered(error.errors(include_url=False)[0]["msg"])
            raise ValueError(f"training.{name} is {_shown(value)}: {message}; correct it.") from None
    return fields


def _lowered(message: str) -> str:
    return message[0].lower() + message[1:]


def _shown(value) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


__all__ = ["first_complaint", "parse_yaml", "training_fields"]
