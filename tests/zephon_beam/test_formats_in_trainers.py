"""What the trainers themselves make of their formats, each where it is installed.

    pip install transformers accelerate torchtitan megatron-core
    pip install --no-deps nemo-automodel

Their functions run here as they are, on a CPU; only the kernel of flash attention, which has none
for it, is replaced by a loop over documents.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.streams import FakeStream, Row, Segment, random_lanes, write_stream
from zephon_beam.reader import StreamReader

torch = pytest.importorskip("torch", reason="torch is not installed (extra `torch`)")

from zephon_beam.torch import StreamDataset, StreamLoader  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
"""Warnings of other projects, about what is missing here, are theirs."""

SEQ_LEN, VOCAB, STEP, MICRO = 16, 64, 6, 3
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5, "check_dtype": False}
"""Parts of models compute in single precision whatever they are converted to."""


def write(folder: Path, lanes: list[list[Row]], **changes: Any) -> FakeStream:
    """Write a stream of small token ids."""
    return write_stream(folder, lanes, vocab_size=VOCAB, **changes)


def aligned(row: Row, multiple: int) -> Row:
    """Move documents to multiples of a number, dropping those for which no room is left."""
    place, moved = 0, []
    for segment in row:
        if place < SEQ_LEN:
            tokens = segment.tokens[: SEQ_LEN - place]
            moved.append(Segment(place, tokens, segment.following))
            place += len(tokens) + -len(tokens) % multiple
    return moved


@pytest.fixture(scope="module", params=["plain", "aligned"])
def stream(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> FakeStream:
    """Rows that are full, short, cut and empty, without and with alignment."""
    lanes = random_lanes([9, 8], seed=3, vocab=VOCAB)
    changes: dict[str, Any] = {}
    if request.param == "aligned":
        lanes = [[aligned(row, 4) for row in lane] for lane in lanes]
        changes["recipe"] = {"packing": {"segment_multiple": 4}}
    return write(tmp_path_factory.mktemp("s"), lanes, **changes)


def arguments(micro: int = MICRO) -> dict[str, Any]:
    """Return arguments of a reader that never waits."""
    return {"global_batch_size": STEP, "micro_batch_size": micro, "timeout": 0}


def batches(stream: FakeStream, name: str, micro: int = MICRO) -> Iterator[tuple[Any, Any]]:
    """Each microbatch as the trainer gets it, and as the reader does."""
    fields = ["labels", "cu_seqlens", "cu_seqlens_padded", "cu_seqlens_real", "max_seqlen"]
    plain = StreamReader(stream.uri, fields=fields, **arguments(micro))
    dataset = StreamDataset(stream.uri, format=name, **arguments(micro))
    yield from zip(dataset, plain, strict=True)


# ------------------------------------------------------------------------------------ Hugging Face


def make_llama(attention: str) -> Any:
    """A model of random weights."""
    transformers = pytest.importorskip("transformers", reason="no transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,  # outputs that differ, so that a wrong label is seen in the loss
    )
    make = transformers.LlamaForCausalLM._from_config
    return make(config, attn_implementation=attention).eval()


def logits_alone(model: Any, batch: Any) -> Any:
    """Outputs of each document when it is all that the model gets."""
    ids, places = (batch[key].flatten() for key in ("input_ids", "position_ids"))
    starts = [*(places == 0).nonzero().flatten().tolist(), len(places)]
    return torch.cat(
        [model(input_ids=ids[first:last][None]).logits[0] for first, last in pairwise(starts)]
    )


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["huggingface", "huggingface_padded"])
def test_a_hugging_face_model_keeps_documents_apart(
    stream: FakeStream, name: str, attention: str
) -> None:
    """Each gets the outputs that it gets alone, and the loss is that of the labels as they are."""
    model = make_llama(attention).double()
    seen = 0
    with torch.no_grad():
        for batch, plain in batches(stream, name):
            output = model(**batch)
            logits = logits_alone(model, batch)
            torch.testing.assert_close(output.logits.flatten(0, 1), logits, **CLOSE)
            labels = torch.tensor(plain["labels"]).long().flatten()
            if (labels != -100).any():
                loss = torch.nn.functional.cross_entropy(logits, labels)
                torch.testing.assert_close(output.loss, loss, **CLOSE)
                seen += 1
    assert seen > 3


def varlen_attention(calls: list[Any]) -> Any:
    """Causal attention within the bounds that a kernel of flash attention is given."""

    def attend(q: Any, k: Any, v: Any, *, cu_seqlens_q: Any, cu_seqlens_k: Any, **more: Any) -> Any:
        calls.append((cu_seqlens_q, cu_seqlens_k, more["max_seqlen_q"], more["max_seqlen_k"]))
        attention = torch.nn.functional.scaled_dot_product_attention
        parts = []
        for first, last in pairwise(cu_seqlens_q.tolist()):
            heads = [x[first:last].transpose(0, 1) for x in (q, k, v)]
            made = attention(*heads, is_causal=more["causal"], enable_gqa=True)
            parts.append(made.transpose(0, 1))
        return torch.cat(parts)

    return attend


def test_flash_attention_is_called_with_the_readers_bounds(
    stream: FakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those that transformers finds in the positions, and it looks for none itself."""
    model = make_llama("sdpa").double()
    utils = pytest.importorskip("transformers.modeling_flash_attention_utils")
    calls: list[Any] = []
    supported = dict.fromkeys(
        ("dropout_p", "window_size", "deterministic", "softcap", "s_aux", "learnable_sink"), False
    )
    supported |= dict.fromkeys(("block_table", "page_table", "cache_seqlens"), False)
    supported |= {"max_seqlen_q": True, "max_seqlen_k": True}

    def process(**more: Any) -> Any:
        return utils._process_flash_attention_kwargs(**more, supports_mapping=supported)

    functions = (None, varlen_attention(calls), None, None, None)
    monkeypatch.setattr(
        utils, "lazy_import_flash_attention", lambda *_, **__: (functions, (process, process))
    )
    monkeypatch.setattr(utils, "_is_packed_sequence", None)
    with torch.no_grad():
        for batch, plain in batches(stream, "huggingface"):
            model.config._attn_implementation = "flash_attention_2"
            output = model(**batch)
            model.config._attn_implementation = "sdpa"
            torch.testing.assert_close(output.logits[0], logits_alone(model, batch), **CLOSE)
            bounds, longest = utils.prepare_fa_kwargs_from_position_ids(batch["position_ids"])
            assert len(calls) == model.config.num_hidden_layers
            for *given, most_q, most_k in calls:
                for got, found in zip(given, bounds, strict=True):
                    assert got.dtype == found.dtype == torch.int32
                    assert got.tolist() == found.tolist() == plain["cu_seqlens"].tolist()
                assert (most_q, most_k) == tuple(int(value) for value in longest)
            calls.clear()


def test_whole_documents_are_flattened_as_transformers_does(tmp_path: Path) -> None:
    """Of documents that nothing cuts, its collater makes the same arrays of the same types."""
    transformers = pytest.importorskip("transformers", reason="no transformers")
    rng = np.random.default_rng(1)
    rows, documents = [], []
    for cut in (5, 1, 9, 15):
        tokens = [tuple(rng.integers(VOCAB, size=n).tolist()) for n in (cut, SEQ_LEN - cut)]
        rows.append([Segment(0, tokens[0]), Segment(cut, tokens[1])])
        documents += [{"input_ids": list(document)} for document in tokens]
    stream = write(tmp_path, [rows])
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    (batch,) = StreamDataset(
        stream.uri, format="huggingface", global_batch_size=4, micro_batch_size=4
    )
    for key, wanted in collate(documents, return_tensors="pt").items():
        if isinstance(wanted, torch.Tensor):
            assert batch[key].dtype == wanted.dtype, key
            assert batch[key].tolist() == wanted.tolist(), key
        else:
            assert (batch[key], type(batch[key])) == (wanted, type(wanted)), key


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_trainer_logs_the_mean_over_the_labels_of_a_step(
    stream: FakeStream, tmp_path: Path, smoothing: float
) -> None:
    """Accumulated over microbatches; with label smoothing too, which shifts labels itself."""
    transformers = pytest.importorskip("transformers", reason="no transformers")
    pytest.importorskip("accelerate", reason="no accelerate")
    loader = StreamLoader(StreamDataset(stream.uri, format="huggingface_padded", **arguments()))

    class Trainer(transformers.Trainer):  # type: ignore[misc, name-defined, unused-ignore]
        def get_train_dataloader(self) -> Any:
            return loader

    model = make_llama("sdpa")
    trainer = Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=2,
            gradient_accumulation_steps=STEP // MICRO,
            learning_rate=0.0,
            label_smoothing_factor=smoothing,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        ),
    )
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    pairs = list(batches(stream, "huggingface_padded"))[: 2 * STEP // MICRO]
    model.eval()
    means = []
    for step in range(2):
        total, count = 0.0, 0
        for batch, plain in pairs[step * STEP // MICRO : (step + 1) * STEP // MICRO]:
            labels = torch.tensor(plain["labels"]).long()
            count += int((labels != -100).sum())
            if smoothing:
                labels[:, -1] = -100  # what only `shift_labels` knows
            with torch.no_grad():
                logits = logits_alone(model, batch)
            total += float(
                torch.nn.functional.cross_entropy(
                    logits, labels.flatten(), reduction="sum", label_smoothing=smoothing
                )
            )
        means.append(total / count)
    np.testing.assert_allclose(logged, means, rtol=1e-4)


# -------------------------------------------------------------------------------------- torchtitan


def test_torchtitan_finds_the_readers_bounds_in_positions(stream: FakeStream) -> None:
    """For varlen attention; its masks for flex attention join exactly what lies between them."""
    attention = pytest.importorskip("torchtitan.models.common.attention", reason="no torchtitan")
    for micro in (1, MICRO):
        for (inputs, labels), plain in batches(stream, "torchtitan", micro):
            made = attention.create_varlen_metadata_for_document(inputs["positions"])
            for found in (made.cu_seq_q, made.cu_seq_k):
                assert found.tolist() == plain["cu_seqlens"].tolist()
            assert int(made.max_q) == int(made.max_k) == plain["max_seqlen"]
            row = np.searchsorted(plain["cu_seqlens"], np.arange(labels.numel()), side="right")
            document = torch.tensor(row).view(micro, SEQ_LEN)
            same = document[:, :, None] == document[:, None, :]
            causal = torch.ones(SEQ_LEN, SEQ_LEN, dtype=torch.bool).tril()
            places = torch.meshgrid(*(torch.arange(n) for n in same.shape), indexing="ij")
            for name in ("document_mask_mod", "efficient_causal_mask_mod_for_packed_document"):
                mask = getattr(attention, f"get_{name}")(inputs["positions"])
                found = mask(places[0], torch.tensor(0), places[1], places[2])
                assert torch.equal(found & causal, same & causal), name


def test_torchtitans_loss_takes_labels_as_they_are(stream: FakeStream) -> None:
    """Neither shifts them; both leave out the same."""
    losses = pytest.importorskip("torchtitan.components.loss", reason="no torchtitan")
    for (inputs, labels), plain in batches(stream, "torchtitan"):
        logits = torch.randn(*inputs["input"].shape, VOCAB)
        chosen = logits.log_softmax(-1).gather(2, labels.clamp(min=0)[..., None])[..., 0]
        wanted = -chosen[torch.tensor(plain["labels"] != -100)].sum()
        torch.testing.assert_close(losses.cross_entropy_loss(logits, labels), wanted)


# ------------------------------------------------------------------------------------- Megatron-LM


def test_megatron_restarts_positions_where_documents_begin(stream: FakeStream) -> None:
    """Its rotary embedding of a packed row is that of each document's places."""
    core = pytest.importorskip("megatron.core.utils", reason="no megatron-core")
    rope = pytest.importorskip("megatron.core.models.common.embeddings.rope_utils")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        for batch, plain in batches(stream, "megatron_packed", 1):
            assert batch["cu_seqlens"].shape[0] == batch["cu_seqlens_padded"].shape[0] == 1
            bounds = batch.pop("cu_seqlens")[0], batch.pop("cu_seqlens_padded")[0]
            cut, packed = core.get_thd_batch_on_this_cp_rank(
                batch, *bounds, batch.pop("max_seqlen"), cp_size=1, cp_rank=0
            )
            for key in ("tokens", "labels", "loss_mask", "position_ids"):
                assert cut[key].shape == (1, SEQ_LEN)
            bounds = packed.cu_seqlens_q
            assert bounds.dtype == torch.int32
            assert packed.max_seqlen_q == int(bounds.diff().max())
            assert bounds.tolist() == plain["cu_seqlens_padded"].tolist()
            places = torch.cat([torch.arange(int(size)) for size in bounds.diff()])
            learned = cut["loss_mask"][0] == 1
            assert torch.equal(places[learned], cut["position_ids"][0][learned])
            angles = torch.randn(packed.max_seqlen_q, 1, 1, 8)
            queries = torch.randn(SEQ_LEN, 2, 8)
            found = rope._apply_rotary_pos_emb_thd(
                queries, bounds, angles, cp_group=torch.distributed.group.WORLD
            )
            apart = rope._apply_rotary_pos_emb_bshd(queries[:, None], angles[places])[:, 0]
            torch.testing.assert_close(found, apart)
    finally:
        torch.distributed.destroy_process_group()


# ---------------------------------------------------------------------------------- NeMo AutoModel


def test_automodels_collater_makes_the_same_of_the_same_rows(stream: FakeStream) -> None:
    """And what it computes for Transformer Engine are the reader's bounds."""
    datasets = pytest.importorskip("nemo_automodel.components.datasets.utils", reason="no NeMo")
    thd = pytest.importorskip("nemo_automodel.components.distributed.thd_utils")
    for micro in (1, MICRO):
        for batch, plain in batches(stream, "automodel", micro):
            rows = []
            for k in range(micro):
                row = {key: value[k].tolist() for key, value in batch.items() if key[0] != "q"}
                for key in ("seq_lens", "seq_lens_padded"):
                    row[key] = [length for length in row[key] if length >= 0]
                rows.append(row)
            for key, wanted in datasets.packed_sequence_thd_collater(rows).items():
                if key == "qkv_format":
                    assert batch[key] == wanted
                    continue
                assert batch[key].dtype == wanted.dtype, key
                assert torch.equal(batch[key], wanted), key
            made = thd.process_input_for_thd(dict(batch), padding_token_id=7)
            bounds, real = plain["cu_seqlens_padded"], plain["cu_seqlens_real"]
            if np.array_equal(bounds[:-1], real[:-1]):
                real = bounds
            assert made["cu_seqlens"].tolist() == real.tolist()
            assert made.get("cu_seqlens_padded", made["cu_seqlens"]).tolist() == bounds.tolist()
            assert int(made["max_seqlen"]) == np.diff(real).max()
