"""What each trainer takes, made from a batch of `StreamReader`: names, types, shapes, structure.

Each function takes a batch of NumPy arrays with the keys in `FORMATS[name].fields` and gives NumPy
arrays; nothing is copied where type and shape fit already, so read with
`FORMATS[name].index_dtype`. `zephon_beam.torch` does both and makes tensors:

    loader = StreamLoader(StreamDataset(stream, format="torchtitan", …))

Labels of zephon-beam are shifted already: the label at a place is the token that follows it in its
document. Each function says what its trainer does with that. In all of them a document never
attends to another one or to padding, as far as the trainer lets a loader say so.

Each names the files of its trainer that it was checked against, and the newest release of those
that are on PyPI; tests/zephon_beam/test_formats_in_trainers.py runs their functions where they are
installed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from zephon_beam.naming import NAMES
from zephon_beam.reader.shards import IGNORED_LABEL
from zephon_beam.samples import Array

Batch = Mapping[str, Any]

NO_SEQUENCE = -1000
"""What NeMo AutoModel fills rows of sequence lengths up with."""


def torchtitan(batch: Batch) -> tuple[dict[str, Array], Array]:
    """Return the pair that torchtitan's trainer takes from its data loader, up to release 0.3.

    Returns:
        ({"input": int64 [mb, seq_len], "positions": int64 [mb, seq_len]}, labels int64
        [mb, seq_len]), labels shifted, which the trainer takes as they are, -100 where none counts.
        Flex and varlen attention begin a document wherever a position is 0.

    Source: torchtitan/hf_datasets/text_datasets.py (`HuggingFaceTextDataset.__iter__`),
        torchtitan/trainer.py (`batch_generator`, `post_dataloading_process`, `train_step`),
        torchtitan/components/loss.py (`IGNORE_INDEX`) and torchtitan/models/common/attention.py
        (`create_varlen_metadata_for_document`, `get_document_mask_mod`) of pytorch/torchtitan
        0.3.0.
    """
    names = NAMES["torchtitan"]
    inputs = {names[key]: _wide(batch[key]) for key in ("input_ids", "position_ids")}
    return inputs, _wide(batch["labels"])


def torchtitan_flat(batch: Batch) -> tuple[dict[str, Any], Array]:
    """Return the same for torchtitan after 0.3, whose batches have tokens and no rows.

    The trainer takes the count of labels out of the inputs. `micro_batch_size` times `seq_len` is
    its `num_tokens_per_microbatch_per_dp_rank`, `seq_len` its `max_context_length`.

    Returns:
        ({"input": int64 [mb·seq_len], "positions": int64 [mb·seq_len], "num_valid_tokens": int},
        labels int64 [mb·seq_len]), as for `torchtitan`.

    Source: torchtitan/components/data/collators.py (`TextCollator`) and torchtitan/trainer.py
        (`train_step`) of pytorch/torchtitan, its main branch after 0.3.0.
    """
    inputs, labels = torchtitan(batch)
    flat: dict[str, Any] = {name: array.reshape(-1) for name, array in inputs.items()}
    flat["num_valid_tokens"] = int(batch["num_valid_tokens"])
    return flat, labels.reshape(-1)


def megatron(batch: Batch) -> dict[str, Array]:
    """Return what Megatron-LM's `get_batch_on_this_tp_rank` takes from its data iterator.

    Returns:
        tokens, labels, position_ids int64 [mb, seq_len]; loss_mask float32 [mb, seq_len]. Labels
        are shifted and are taken as they are; where none counts they are 0, an id that exists, and
        `loss_mask` is 0, because the vocabulary-parallel loss knows no -100. There is no
        `attention_mask`: run with `--no-create-attention-mask-in-dataloader`. Attention is then
        causal over the whole row; `megatron_packed` keeps documents apart.

    Source: megatron/training/utils.py, later megatron/core/utils.py (`get_batch_on_this_tp_rank`),
        and pretrain_gpt.py (`loss_func`) of NVIDIA/Megatron-LM.
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
    """Return the same with the boundaries of packed documents.

    Padding that aligns a document belongs to its slot, as in Megatron-LM's own packed data, so the
    boundaries hold with context parallelism (`packing.segment_multiple`). Both keys are the same
    array: versions that know no `cu_seqlens_padded` take `cu_seqlens` for places in memory, and
    those that do attend over `cu_seqlens_padded`. With `--dataloader-inter-document-masking`, or
    `--sft` in versions without that flag, tensor and pipeline peers expect them too.

    Returns:
        What `megatron` returns, and cu_seqlens, cu_seqlens_padded int32 [mb, slots + 1], each row
        from 0 to seq_len, which fills it up; max_seqlen int32 [mb], the longest slot of each row.
        Versions without that flag refuse microbatches of more than one row.

    Source: megatron/training/utils.py, later megatron/core/utils.py (`get_batch_on_this_tp_rank`,
        `get_thd_batch_on_this_cp_rank`, `flatten_batch_for_packed_sequences`), pretrain_gpt.py and
        pretrain_hybrid.py (`get_batch`, `forward_step`), and
        megatron/training/datasets/sft_dataset.py (`SFTDataset.__getitem__`) of NVIDIA/Megatron-LM,
        megatron-core 0.16.1.
    """
    rows, seq_len = batch["input_ids"].shape
    slots = batch["cu_seqlens_padded"]
    count, places = _slots_of_rows(slots, rows, seq_len, len(slots) - 1)
    lengths = np.zeros(places.shape, np.int32)
    lengths[places] = np.diff(slots)[:count]
    bounds = np.zeros((rows, len(slots)), np.int32)
    np.cumsum(lengths, axis=1, out=bounds[:, 1:])
    return {
        **megatron(batch),
        "cu_seqlens": bounds,
        "cu_seqlens_padded": bounds,
        "max_seqlen": lengths.max(axis=1),
    }


def automodel(batch: Batch) -> dict[str, Any]:
    """Return what NeMo AutoModel's packed-sequence collater returns for the THD layout.

    Returns:
        input_ids, labels, position_ids int64 [mb, seq_len], labels shifted, which the loss takes as
        they are, -100 where none counts; seq_lens, seq_lens_padded int64 [mb, most], the lengths of
        the sequences of each row without and with the padding that aligns them, filled up with
        -1000; qkv_format "thd". Padding at the end of a row is a sequence of its own, so that it
        joins no document. There is no `padding_mask`: it is found by the tokenizer's pad id.

    Source: nemo_automodel/components/datasets/utils.py (`packed_sequence_thd_collater`) and
        nemo_automodel/components/distributed/thd_utils.py (`process_input_for_thd`,
        `split_batch_into_thd_chunks`) of NVIDIA-NeMo/Automodel 0.7.0.
    """
    rows, seq_len = batch["input_ids"].shape
    slots = batch["cu_seqlens_padded"]
    count, places = _slots_of_rows(slots, rows, seq_len)
    lengths = np.full((2, *places.shape), NO_SEQUENCE, np.int64)
    lengths[0][places] = np.diff(batch["cu_seqlens_real"])[:count]
    lengths[1][places] = np.diff(slots)[:count]
    arrays = {key: _wide(batch[key]) for key in ("input_ids", "labels", "position_ids")}
    return {**arrays, "seq_lens": lengths[0], "seq_lens_padded": lengths[1], "qkv_format": "thd"}


def huggingface(batch: Batch) -> dict[str, Any]:
    """Return the arguments of a Hugging Face causal language model with flash attention.

    The rows are joined to one, as `DataCollatorWithFlattening` does, and the varlen arguments say
    where documents begin. Models compute a loss if there are `labels`, and take `shift_labels` as
    they are if there are any, as `Trainer` does for the number of labels to divide by. `labels`
    stand one place to the right of those, below the tokens that they are, for what shifts them
    itself: `label_smoothing_factor`, losses and metrics of one's own. Of a label of the very last
    place only `shift_labels` knows. With a cache for generation models do not look where documents
    begin, so it is switched off.

    Returns:
        input_ids, position_ids, labels, shift_labels int64 [1, mb·seq_len], -100 where none counts;
        cu_seq_lens_q and cu_seq_lens_k int32 [runs + 1]; max_length_q and max_length_k int;
        use_cache False. There is no `attention_mask`.

    Source: src/transformers/data/data_collator.py (`DataCollatorWithFlattening`),
        src/transformers/modeling_flash_attention_utils.py (`FlashAttentionKwargs`,
        `_flash_attention_forward`), src/transformers/loss/loss_utils.py (`ForCausalLMLoss`) and
        src/transformers/trainer.py (`compute_loss`, `_get_num_items_in_batch`) of
        huggingface/transformers 5.24.
    """
    labels = _wide(batch["labels"]).reshape(1, -1)
    bounds = batch["cu_seqlens"].astype(np.int32, copy=False)
    longest = int(batch["max_seqlen"])
    return {
        "input_ids": _wide(batch["input_ids"]).reshape(1, -1),
        "position_ids": _wide(batch["position_ids"]).reshape(1, -1),
        "labels": _unshifted(labels),
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
    `position_ids` restart, with `sdpa` and `eager` attention too. Labels are as for `huggingface`,
    row by row.

    Returns:
        input_ids, position_ids, labels, shift_labels int64 [mb, seq_len]; use_cache False.

    Source: src/transformers/masking_utils.py (`find_packed_sequence_indices`) and
        src/transformers/loss/loss_utils.py (`ForCausalLMLoss`) of huggingface/transformers 5.24.
    """
    arrays = {key: _wide(batch[key]) for key in ("input_ids", "position_ids")}
    labels = _wide(batch["labels"])
    return {**arrays, "labels": _unshifted(labels), "shift_labels": labels, "use_cache": False}


def maxtext(batch: Batch) -> dict[str, Array]:
    """Return the six arrays of MaxText's input pipelines.

    Returns:
        int32 [mb, seq_len] each: inputs, targets; inputs_position, targets_position, which restart
        with each document; inputs_segmentation, 1, 2, … and 0 for padding; targets_segmentation,
        the same but 0 wherever no label counts, which is where the loss is masked. Targets are
        shifted; where none counts they are 0, an id that exists.

    Source: src/maxtext/input_pipeline/synthetic_data_processing.py
        (`raw_generate_synthetic_data`) and src/maxtext/trainers/pre_train/train.py (`loss_fn`) of
        AI-Hypercomputer/maxtext.
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

FORMATS: Mapping[str, Format] = {
    "torchtitan": Format(convert=torchtitan, fields=_TITAN, index_dtype="int64"),
    "torchtitan_flat": Format(
        convert=torchtitan_flat, fields=(*_TITAN, "num_valid_tokens"), index_dtype="int64"
    ),
    "megatron": Format(convert=megatron, fields=_MEGATRON, index_dtype="int64"),
    "megatron_packed": Format(
        convert=megatron_packed, fields=(*_MEGATRON, "cu_seqlens_padded"), index_dtype="int64"
    ),
    "automodel": Format(
        convert=automodel,
        fields=(*_TITAN, "cu_seqlens_padded", "cu_seqlens_real"),
        index_dtype="int64",
    ),
    "huggingface": Format(
        convert=huggingface, fields=(*_TITAN, "cu_seqlens", "max_seqlen"), index_dtype="int64"
    ),
    "huggingface_padded": Format(convert=huggingface_padded, fields=_TITAN, index_dtype="int64"),
    "maxtext": Format(
        convert=maxtext, fields=(*_TITAN, "segment_ids", "loss_mask"), index_dtype="int32"
    ),
}
"""The formats by name."""


def _slots_of_rows(
    slots: Array, rows: int, seq_len: int, width: int | None = None
) -> tuple[int, Array]:
    """Return the number of slots, and which of `width` places a row they take, bool [rows, width].

    Slots behind the last row are empty: they fill up `cu_seqlens_len`. Without a width it is the
    largest number of slots in a row.
    """
    counts = np.diff(np.searchsorted(slots, np.arange(rows + 1) * seq_len))
    return int(counts.sum()), np.arange(width or counts.max()) < counts[:, None]


def _unshifted(labels: Array) -> Array:
    """Move each label of a row to the place of the token that it is."""
    moved = np.full_like(labels, IGNORED_LABEL)
    moved[:, 1:] = labels[:, :-1]
    return moved


def _wide(array: Array) -> Array:
    return array.astype(np.int64, copy=False)


def _narrow(array: Array) -> Array:
    return array.astype(np.int32, copy=False)
