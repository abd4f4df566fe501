"""What each trainer takes, made from a batch of `StreamReader`: names, types, shapes, structure.

Each function takes a batch of NumPy arrays with the keys in `FORMATS[name].fields` and gives NumPy
arrays; nothing is copied where type and shape fit already, so read with
`FORMATS[name].index_dtype`. `zephon_beam.torch` does both and makes tensors:

    loader = StreamLoader(StreamDataset(stream, format="torchtitan", …))

Labels of zephon-beam are shifted already: the label at a place is the token that follows it in its
document. Each function says what its trainer does with that. In all of them a document never
attends to another one or to padding, as far as the trainer lets a loader say so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from zephon_beam.checks import require
from zephon_beam.naming import NAMES
from zephon_beam.samples import Array

Batch = Mapping[str, Any]

NO_SEQUENCE = -1000
"""What NeMo AutoModel fills rows of sequence lengths up with."""


def torchtitan(batch: Batch) -> tuple[dict[str, Array], Array]:
    """Return the pair that torchtitan's trainer takes from its data loader.

    Returns:
        ({"input": int64 [mb, seq_len], "positions": int64 [mb, seq_len]}, labels int64
        [mb, seq_len]), labels shifted, -100 where none counts. Flex and varlen attention find the
        documents where `positions` restart.

    Source: torchtitan/hf_datasets/text_datasets.py (`__iter__`), torchtitan/trainer.py
        (`batch_generator`, `post_dataloading_process`, `train_step`) of pytorch/torchtitan.
    """
    names = NAMES["torchtitan"]
    inputs = {names[key]: _wide(batch[key]) for key in ("input_ids", "position_ids")}
    return inputs, _wide(batch["labels"])


def megatron(batch: Batch) -> dict[str, Array]:
    """Return what Megatron-LM's `get_batch_on_this_tp_rank` takes from its data iterator.

    Returns:
        tokens, labels, position_ids int64 [mb, seq_len]; loss_mask float32 [mb, seq_len]. Labels
        are shifted; where none counts they are 0, an id that exists, and `loss_mask` is 0, because
        the vocabulary-parallel loss knows no -100. There is no `attention_mask`: run with
        `--no-create-attention-mask-in-dataloader`. Attention is then causal over the whole row;
        `megatron_packed` keeps documents apart.

    Source: megatron/training/utils.py (`get_batch_on_this_tp_rank`) of NVIDIA/Megatron-LM.
    """
    counts = batch["loss_mask"] != 0
    labels = np.where(counts, batch["labels"], 0)
    return {
        "tokens": _wide(batch["input_ids"]),
        "labels": _wide(labels),
        "loss_mask": counts.astype(np.float32),
        "position_ids": _wide(batch["position_ids"]),
    }


def megatron_packed(batch: Batch) -> dict[str, Array]:
    """Return the same with the boundaries of packed documents, for microbatches of one row.

    Returns:
        What `megatron` returns, and cu_seqlens int32 [1, runs + 1] and max_seqlen int32 [1].

    Raises:
        RecipeError: the microbatch has more than one row, which Megatron-LM refuses.

    Source: megatron/training/utils.py (`_broadcast_cu_seqlens`) of NVIDIA/Megatron-LM.
    """
    rows = len(batch["input_ids"])
    require(
        rows == 1,
        "micro_batch_size",
        "1 for packed Megatron-LM batches",
        rows,
        "use long rows and micro_batch_size=1, or the format megatron",
    )
    return {
        **megatron(batch),
        "cu_seqlens": batch["cu_seqlens"].astype(np.int32, copy=False)[None],
        "max_seqlen": np.array([batch["max_seqlen"]], np.int32),
    }


def automodel(batch: Batch) -> dict[str, Any]:
    """Return what NeMo AutoModel's packed-sequence collater returns for the THD layout.

    Returns:
        input_ids, labels, position_ids int64 [mb, seq_len], labels shifted, -100 where none
        counts; seq_lens, seq_lens_padded int64 [mb, most], the lengths of the sequences of each
        row without and with the padding that aligns them, filled up with -1000; qkv_format "thd".
        Padding at the end of a row is a sequence of its own, so that it joins no document.

    Source: nemo_automodel/components/datasets/utils.py (`packed_sequence_thd_collater`) and
        nemo_automodel/components/distributed/thd_utils.py (`process_input_for_thd`) of
        NVIDIA-NeMo/Automodel.
    """
    rows, seq_len = batch["input_ids"].shape
    slots = batch["cu_seqlens_padded"]
    counts = np.diff(np.searchsorted(slots, np.arange(rows + 1) * seq_len))
    places = np.arange(counts.max()) < counts[:, None]
    lengths = np.full((2, *places.shape), NO_SEQUENCE, np.int64)
    lengths[0][places] = np.diff(batch["cu_seqlens_real"])[: counts.sum()]
    lengths[1][places] = np.diff(slots)[: counts.sum()]
    arrays = {key: _wide(batch[key]) for key in ("input_ids", "labels", "position_ids")}
    return {**arrays, "seq_lens": lengths[0], "seq_lens_padded": lengths[1], "qkv_format": "thd"}


def huggingface(batch: Batch) -> dict[str, Any]:
    """Return the arguments of a Hugging Face causal language model with flash attention.

    The rows are joined to one, as `DataCollatorWithFlattening` does, and the varlen arguments say
    where documents begin. Labels go in twice: models compute a loss if there are `labels`, and
    shift them, unless there are `shift_labels`, which are taken as they are. `Trainer` counts the
    labels that are not -100 in `labels`, so the two are the same array. With a cache for generation
    models do not look where documents begin, so it is switched off.

    Returns:
        input_ids, position_ids, labels, shift_labels int64 [1, mb·seq_len]; cu_seq_lens_q and
        cu_seq_lens_k int32 [runs + 1]; max_length_q and max_length_k int; use_cache False.

    Source: src/transformers/data/data_collator.py (`DataCollatorWithFlattening`) and
        src/transformers/loss/loss_utils.py (`ForCausalLMLoss`) of huggingface/transformers.
    """
    labels = _wide(batch["labels"]).reshape(1, -1)
    bounds = batch["cu_seqlens"].astype(np.int32, copy=False)
    longest = int(batch["max_seqlen"])
    return {
        "input_ids": _wide(batch["input_ids"]).reshape(1, -1),
        "position_ids": _wide(batch["position_ids"]).reshape(1, -1),
        "labels": labels,
        "shift_labels": labels,
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": longest,
        "max_length_k": longest,
        "use_cache": False,
    }


def huggingface_padded(batch: Batch) -> dict[str, Any]:
    """Return the arguments of a Hugging Face model without flash attention, row by row.

    Without an attention mask, and without a cache for generation, models find the documents where
    `position_ids` restart, with `sdpa` and `eager` attention too.

    Returns:
        input_ids, position_ids, labels, shift_labels int64 [mb, seq_len]; use_cache False.

    Source: src/transformers/masking_utils.py (`find_packed_sequence_indices`) and
        src/transformers/loss/loss_utils.py (`ForCausalLMLoss`) of huggingface/transformers.
    """
    arrays = {key: _wide(batch[key]) for key in ("input_ids", "position_ids", "labels")}
    return {**arrays, "shift_labels": arrays["labels"], "use_cache": False}


def maxtext(batch: Batch) -> dict[str, Array]:
    """Return the six arrays of MaxText's input pipelines.

    Returns:
        int32 [mb, seq_len] each: inputs, targets; inputs_position, targets_position, which restart
        with each document; inputs_segmentation, 1, 2, … and 0 for padding; targets_segmentation,
        the same but 0 wherever no label counts, which is where the loss is masked. Targets are
        shifted; where none counts they are 0, an id that exists.

    Source: src/MaxText/input_pipeline/synthetic_data_processing.py and
        src/MaxText/train.py (`loss_fn`) of AI-Hypercomputer/maxtext.
    """
    counts = batch["loss_mask"] != 0
    positions = _narrow(batch["position_ids"])
    segments = _narrow(batch["segment_ids"])
    return {
        "inputs": _narrow(batch["input_ids"]),
        "inputs_position": positions,
        "inputs_segmentation": segments,
        "targets": _narrow(np.where(counts, batch["labels"], 0)),
        "targets_position": positions,
        "targets_segmentation": np.where(counts, segments, np.int32(0)),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """How a trainer's batches are made."""

    convert: Callable[[Batch], Any]
    """From a batch of the reader to the trainer's."""
    fields: tuple[str, ...]
    """What the reader has to build for it."""
    index_dtype: str
    """The reader's `index_dtype` with which the least is copied."""


_TITAN = ("input_ids", "labels", "position_ids")
_MEGATRON = (*_TITAN, "loss_mask")
_VARLEN = ("cu_seqlens", "max_seqlen")

FORMATS: Mapping[str, Format] = {
    "torchtitan": Format(convert=torchtitan, fields=_TITAN, index_dtype="int64"),
    "megatron": Format(convert=megatron, fields=_MEGATRON, index_dtype="int64"),
    "megatron_packed": Format(
        convert=megatron_packed, fields=(*_MEGATRON, *_VARLEN), index_dtype="int64"
    ),
    "automodel": Format(
        convert=automodel,
        fields=(*_TITAN, "cu_seqlens_padded", "cu_seqlens_real"),
        index_dtype="int64",
    ),
    "huggingface": Format(convert=huggingface, fields=(*_TITAN, *_VARLEN), index_dtype="int64"),
    "huggingface_padded": Format(convert=huggingface_padded, fields=_TITAN, index_dtype="int64"),
    "maxtext": Format(
        convert=maxtext, fields=(*_TITAN, "segment_ids", "loss_mask"), index_dtype="int32"
    ),
}
"""The formats by name."""


def _wide(array: Array) -> Array:
    return array.astype(np.int64, copy=False)


def _narrow(array: Array) -> Array:
    return array.astype(np.int32, copy=False)
