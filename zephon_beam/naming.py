"""The names that trainers give to the arrays of a batch.

Only names are changed here; values, types and shapes stay. Trainers also want other types, shapes
and labels: `zephon_beam.formats` makes those, with these names, and says where it found them.
"""

from collections.abc import Mapping
from typing import Any

from zephon_beam.checks import require_choice

NAMES: Mapping[str, Mapping[str, str]] = {
    "torchtitan": {"input_ids": "input", "position_ids": "positions", "labels": "labels"},
    "megatron": {
        "input_ids": "tokens",
        "labels": "labels",
        "loss_mask": "loss_mask",
        "position_ids": "position_ids",
        "cu_seqlens": "cu_seqlens",
        "max_seqlen": "max_seqlen",
    },
    "automodel": {
        "input_ids": "input_ids",
        "labels": "labels",
        "position_ids": "position_ids",
    },
    "huggingface": {
        "input_ids": "input_ids",
        "labels": "shift_labels",  # its `labels` are shifted by the model
        "position_ids": "position_ids",
        "cu_seqlens": "cu_seq_lens_q",
        "max_seqlen": "max_length_q",
    },
    "maxtext": {
        "input_ids": "inputs",
        "position_ids": "inputs_position",
        "segment_ids": "inputs_segmentation",
        "labels": "targets",
        "loss_mask": "targets_segmentation",
    },
}
"""For each trainer: our name, its name. Keys that it has no name for are not listed."""


def rename(batch: Mapping[str, Any], trainer: str) -> dict[str, Any]:
    """Rename the arrays of a batch as a trainer names them; nothing is copied.

    Args:
        batch: what `StreamReader` yields.
        trainer: a key of `NAMES`.

    Returns:
        A new dict in the order of the batch; keys that the trainer has no name for keep theirs.

    Raises:
        RecipeError: the trainer is unknown; the nearest one is named.
    """
    require_choice("trainer", trainer, NAMES)
    names = NAMES[trainer]
    return {names.get(key, key): value for key, value in batch.items()}
