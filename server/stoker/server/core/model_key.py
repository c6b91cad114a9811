"""The identifiers of models: a key is the model's name, or with model namespaces (`--model-namespacing`) the name and its repository.

The key of model `m` of the second repository is `m@2`: a name has no `@`, so no name is such a key.
"""

_SEPARATOR = "@"


def model_key(name: str, repository: int) -> str:
    """The key of the model `name` in the namespace of a repository, which is given by its index from 0."""
    return f"{name}{_SEPARATOR}{repository + 1}"


def name_of(key: str) -> str:
    """The model's name."""
    return key.partition(_SEPARATOR)[0]


def repository_of(key: str) -> int | None:
    """The index of the model's repository; None: the key has no namespace."""
    number = key.partition(_SEPARATOR)[2]
    return int(number) - 1 if number else None
