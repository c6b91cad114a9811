"""`PackRunnerConfig`: PopRT's fields for packing, on top of those of every runner."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from poprt.runtime.packing import PackAlgorithm
from stoker.backends.ipu.runtime.runtime_config import RunnerType, RuntimeConfig

#: A number that the compiled model gives.
FROM_MODEL = -1


@dataclass(slots=True)
class PackRunnerConfig(RuntimeConfig):
    """How a `PackRunner` runs. What is left at its default comes from the model, where `packed_transformer` packed it.

    Attributes:
        timeout_microseconds: The window: how long a request waits for others to share its pack at most (default as in PopRT's examples).
        max_valid_num: Sequences in a pack at most; never more than the model was packed for.
        dynamic_input_name: The input whose length is a request's length.
        unpack_info_input_name: The input that tells the device where sequences begin: int32 [max_valid_num, 2], (row, offset).
        compile_batch_size: Rows of a batch, checked against the model.
        mask_name: The attention mask. Requests give 1 for tokens and 0 for padding, the device gets the sequence's number, or 0.
        position_ids_name: The input with each token's place in its sequence; filled in where a request does not give it.
        dynamic_group: Inputs whose lengths belong together, a list of names for each group; the first is the one whose length counts.
        algo: Where sequences go.
        padding_remove_mask: Set by `enable_padding_remove_mode`.
        padding_remove_inputs: Likewise.
        single_row_input: Set by `enable_input_single_row_mode`.
        delimiter_num: Likewise.
    """

    runner_type: ClassVar[RunnerType] = RunnerType.PACK_RUNNER

    timeout_microseconds: int = 15_000
    max_valid_num: int = FROM_MODEL
    dynamic_input_name: str = ""
    unpack_info_input_name: str = ""
    compile_batch_size: int = FROM_MODEL
    mask_name: str = ""
    position_ids_name: str = ""
    dynamic_group: Sequence[Sequence[str]] = ()
    algo: PackAlgorithm = PackAlgorithm.next_fit
    padding_remove_mask: str = field(default="", kw_only=True)
    padding_remove_inputs: tuple[str, ...] = field(default=(), kw_only=True)
    single_row_input: str = field(default="", kw_only=True)
    delimiter_num: int = field(default=0, kw_only=True)

    @property
    def algorithm(self) -> PackAlgorithm:
        """`algo`, by the name that PopRT's examples use."""
        return self.algo

    @algorithm.setter
    def algorithm(self, value: PackAlgorithm) -> None:
        self.algo = value

    def enable_padding_remove_mode(self, mask_name: str, input_names: Sequence[str]) -> None:
        """Takes out of each request what its mask says is padding, so that requests of one fixed length are packed by their real one.

        Args:
            mask_name: The input that is 0 where the others are padding.
            input_names: The others.
        """
        self.padding_remove_mask = mask_name
        self.padding_remove_inputs = tuple(input_names)

    def enable_input_single_row_mode(self, input_name: str, delimiter_num: int = 0) -> None:
        """Makes an input the one that tells the sequences of a row apart; sequences then stay whole within a row.

        Args:
            input_name: The attention mask.
            delimiter_num: Tokens that stay free between two sequences of a row.
        """
        self.single_row_input = input_name
        self.delimiter_num = delimiter_num

    def check(self) -> None:
        """Refuses values that make no sense.

        Raises:
            ValueError: a value is out of range, or contradicts another; names the field.
        """
        RuntimeConfig.check(self)
        if self.timeout_microseconds < 0:
            raise ValueError(f"timeout_microseconds is {self.timeout_microseconds}; expected 0 or more")
        for name in ("max_valid_num", "compile_batch_size"):
            value = getattr(self, name)
            if value != FROM_MODEL and value < 1:
                raise ValueError(f"{name} is {value}; expected 1 or more, or {FROM_MODEL} for the model's")
        if self.delimiter_num < 0:
            raise ValueError(f"delimiter_num is {self.delimiter_num}; expected 0 or more")
        if not isinstance(self.algo, PackAlgorithm):
            raise ValueError(f"algo is {self.algo!r}; expected one of {', '.join(f'PackAlgorithm.{each.name}' for each in PackAlgorithm)}")
        if self.is_batching:
            raise ValueError("batching_dim cannot be set for a PackRunner: packs are whole batches")
        if self.single_row_input and self.algo is PackAlgorithm.end_to_end:
            raise ValueError(
                f"input '{self.single_row_input}' is in single-row mode, and end_to_end lets sequences go over the end of rows"
            )
        if self.single_row_input and self.mask_name not in ("", self.single_row_input):
            raise ValueError(f"single-row mode names '{self.single_row_input}' as the mask, mask_name is '{self.mask_name}'")
