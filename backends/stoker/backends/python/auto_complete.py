"""`ModelConfig` of `triton_python_backend_utils`: what `auto_complete_config` gets, completes and returns."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

_INPUT_PROPERTIES: Final = ("name", "data_type", "dims", "optional")
_OUTPUT_PROPERTIES: Final = ("name", "data_type", "dims")


class ModelConfig:
    """A model's configuration in Triton's JSON form."""

    def __init__(self, model_config: str) -> None:
        """Reads the configuration as written, a JSON object."""
        self._config: dict[str, Any] = json.loads(model_config)
        for side in ("input", "output"):
            self._config.setdefault(side, [])
        self._config.setdefault("max_batch_size", 0)

    def as_dict(self) -> dict[str, Any]:
        """The configuration; to be read only."""
        return self._config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Sets `max_batch_size`.

        Raises:
            ValueError: the configuration has a larger one.
        """
        written = self._config["max_batch_size"]
        if written > max_batch_size:
            raise ValueError(f"{self._at('max_batch_size')} {max_batch_size}, but the configuration specifies {written}")
        self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Sets `dynamic_batching`, unless it is there.

        Raises:
            ValueError: the configuration has another scheduler.
        """
        for other in ("sequence_batching", "ensemble_scheduling"):
            if other in self._config:
                raise ValueError(f"{self._at('dynamic_batching')}, but the configuration specifies {other}")
        self._config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, Any]) -> None:
        """Sets `model_transaction_policy` from `{"decoupled": bool}`.

        Raises:
            ValueError: there is another property, or the configuration specifies the other value.
        """
        _check_properties(transaction_policy_dict, ("decoupled",), self._at("model_transaction_policy"))
        policy = self._config.setdefault("model_transaction_policy", {})
        if "decoupled" in transaction_policy_dict:
            decoupled = transaction_policy_dict["decoupled"]
            if policy.get("decoupled", decoupled) != decoupled:
                raise ValueError(f"{self._at('decoupled')} {decoupled}, but the configuration specifies {policy['decoupled']}")
            policy["decoupled"] = decoupled

    def add_input(self, input: Mapping[str, Any]) -> None:
        """Adds an input: `name`, `data_type` such as `TYPE_FP32`, `dims`, and perhaps `optional`.

        Raises:
            ValueError: a property is missing or unknown, or the configuration specifies another value.
        """
        self._add("input", input, _INPUT_PROPERTIES)

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Adds an output: `name`, `data_type` such as `TYPE_FP32` and `dims`.

        Raises:
            ValueError: a property is missing or unknown, or the configuration specifies another value.
        """
        self._add("output", output, _OUTPUT_PROPERTIES)

    def _add(self, side: str, tensor: Mapping[str, Any], allowed: Sequence[str]) -> None:
        where = self._at(f"{side} '{tensor.get('name', '')}'")
        _check_properties(tensor, allowed, where)
        for name in ("name", "data_type", "dims"):
            if name not in tensor:
                raise ValueError(f"{where} without the property '{name}'")
        for known in self._config[side]:
            if known["name"] == tensor["name"]:
                self._complete(known, tensor, where)
                return
        self._config[side].append(dict(tensor))

    @staticmethod
    def _complete(known: dict[str, Any], tensor: Mapping[str, Any], where: str) -> None:
        if known.get("data_type", "TYPE_INVALID") not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(f"{where} of data_type {tensor['data_type']}, but the configuration specifies {known['data_type']}")
        if known.get("dims") and list(known["dims"]) != list(tensor["dims"]):
            raise ValueError(f"{where} of dims {list(tensor['dims'])}, but the configuration specifies {list(known['dims'])}")
        if known.get("optional") and "optional" in tensor and not tensor["optional"]:
            raise ValueError(f"{where} of optional {tensor['optional']}, but the configuration specifies {known['optional']}")
        known.update(tensor)

    def _at(self, what: str) -> str:
        return f"auto_complete_config of model '{self._config.get('name', '')}' sets {what}"


def _check_properties(given: Mapping[str, Any], allowed: Sequence[str], where: str) -> None:
    for name in given:
        if name not in allowed:
            raise ValueError(f"{where} with the unknown property '{name}'; allowed: {', '.join(allowed)}")


def input_config(model_config: Mapping[str, Any], name: str) -> Any:
    """The input `name` of a configuration; None: it has no such input."""
    return next((tensor for tensor in model_config.get("input", ()) if tensor["name"] == name), None)


def output_config(model_config: Mapping[str, Any], name: str) -> Any:
    """The output `name` of a configuration; None: it has no such output."""
    return next((tensor for tensor in model_config.get("output", ()) if tensor["name"] == name), None)


def is_decoupled(model_config: Mapping[str, Any]) -> bool:
    """Whether the model may respond any number of times."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))
