"""Conversations with images and videos: placeholders where the template puts them, masks, forgery.

What Transformers makes of the same conversations is pinned; where its processors are installed
(`pip install transformers torch torchvision`), they are asked again.
"""

import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from tests.chat_folders import PICTURES_FIRST, VISION, build_media_tokenizer, write_folder
from tests.clips import file_part, image_bytes, text_part, write_clip
from tests.transforms.test_tokenize_chat import as_documents, tokenize
from transforms.media.documents import probe_document
from transforms.tokenize_chat import ChatTokenizer, TokenizedConversations
from zephon_beam.errors import BadRecordError
from zephon_beam.recipe import BadRecordsRecipe, ChatRecipe, Recipe, TokenizerRecipe
from zephon_beam.recipe_datasets import DatasetRecipe
from zephon_beam.recipe_media import MediaRecipe
from zephon_beam.sources.documents import Documents, Quarantined, Spans
from zephon_beam.tokenizer import Framing

TOKENIZER = build_media_tokenizer()
TOKENIZER.encode_special_tokens = True
QWEN = MediaRecipe(preset="qwen2_vl", num_frames=4)
PAIR = MediaRecipe(preset="qwen2_vl", image_token="<image>", video_token="<video>")
LLAVA = MediaRecipe(preset="llava_1_5", num_frames=4)


def token(name: str) -> int:
    """Return the id of a special token."""
    return int(TOKENIZER.token_to_id(name))


def plain(text: str) -> list[int]:
    """Encode text in which nothing is special."""
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


IMAGE, VIDEO = {"type": "image"}, {"type": "video"}
START, END = token("<|vision_start|>"), token("<|vision_end|>")


def make_chat(
    folder: Path,
    template: str = VISION,
    *,
    media: MediaRecipe = QWEN,
    loss_on: str = "assistant",
    action: str = "fail",
    special: bool = True,
) -> ChatTokenizer:
    """Load a tokenizer of conversations with media."""
    write_folder(folder, template, tokenizer=build_media_tokenizer(special=special))
    recipe = Recipe(
        name="chat",
        tokenizer=TokenizerRecipe(path=str(folder), eos=None),
        datasets={"talk": DatasetRecipe(files="*.jsonl", messages="messages")},
        chat=ChatRecipe(loss_on=loss_on),
        bad_records=BadRecordsRecipe(action=action),
        media=media,
    )
    return ChatTokenizer(recipe, framing=Framing(bos=None, eos=None), dtype=np.dtype(np.uint16))


def part_of(*talks: tuple[Sequence[dict[str, Any]], Sequence[tuple[str, int]]]) -> Documents:
    """Make a part of conversations, each with (type, placeholders) of its items."""
    pieces = [piece for _, items in talks for piece in items]
    spans = Spans(
        pieces=[kind for kind, _ in pieces],
        special=np.ones(len(pieces), np.bool_),
        bounds=np.cumsum([0, *(len(items) for _, items in talks)]).astype(np.int64),
        repeats=np.array([count for _, count in pieces], np.int64),
    )
    return as_documents([json.dumps(messages) for messages, _ in talks], spans=spans)


def documents_of(found: TokenizedConversations) -> list[tuple[list[int], list[int]]]:
    """Return tokens and mask of each conversation."""
    bounds = zip(found.offsets[:-1].tolist(), found.offsets[1:].tolist(), strict=True)
    return [(found.tokens[a:b].tolist(), found.loss_mask[a:b].tolist()) for a, b in bounds]


def user(*content: dict[str, Any]) -> dict[str, Any]:
    """Return a message of a user in parts."""
    return {"role": "user", "content": list(content)}


def answer(text: str) -> dict[str, Any]:
    """Return a message of the assistant."""
    return {"role": "assistant", "content": text}


def turn(role: str, *pieces: list[int]) -> list[int]:
    """Write a turn of the vision template by hand."""
    inner = [number for piece in pieces for number in piece]
    return [token("<|im_start|>"), *plain(f"{role}\n"), *inner, token("<|im_end|>"), *plain("\n")]


def shown(name: str, count: int) -> list[int]:
    """Write an item with what stands around it."""
    return [START, *([token(name)] * count), END]


def test_items_stand_where_the_template_puts_them(tmp_path: Path) -> None:
    """Several in a message and in a conversation, beside conversations without any."""
    talks = (
        (
            [user(IMAGE, text_part("Hello"), VIDEO, IMAGE), answer("is 42"), user(IMAGE)],
            [("image", 5), ("video", 3), ("image", 1), ("image", 2)],
        ),
        ([{"role": "user", "content": "Hello"}, answer("The answer")], []),
        ([user(text_part("a"), text_part("b")), answer("c")], []),
        ([user(VIDEO)], [("video", 7)]),
    )
    found = documents_of(tokenize(make_chat(tmp_path), part_of(*talks)))
    said = [
        turn(
            "user",
            shown("<|image_pad|>", 5),
            plain("Hello"),
            shown("<|video_pad|>", 3),
            shown("<|image_pad|>", 1),
        ),
        turn("assistant", plain("is 42")),
        turn("user", shown("<|image_pad|>", 2)),
    ]
    assert found[0][0] == [number for piece in said for number in piece]
    assert found[1][0] == turn("user", plain("Hello")) + turn("assistant", plain("The answer"))
    assert found[2][0] == turn("user", plain("ab")) + turn("assistant", plain("c"))
    assert found[3][0] == turn("user", shown("<|video_pad|>", 7))
    answered = [*plain("is 42"), token("<|im_end|>")]
    places = np.flatnonzero(found[0][1])
    assert [found[0][0][place + 1] for place in places.tolist()] == answered
    assert len(places) == len(answered)
    assert not any(found[3][1])


def test_items_of_the_assistant_are_not_learned(tmp_path: Path) -> None:
    """Nor with `loss_on: all`; texts around them are."""
    talk = [user(text_part("Hello")), {"role": "assistant", "content": [IMAGE, text_part("42")]}]
    of_media = {START, END, token("<|image_pad|>")}
    for loss_on, expected in (("assistant", [*plain("42"), token("<|im_end|>")]), ("all", None)):
        chat = make_chat(tmp_path, loss_on=loss_on)
        ((tokens, mask),) = documents_of(tokenize(chat, part_of((talk, [("image", 4)]))))
        learned = [tokens[place + 1] for place in np.flatnonzero(mask).tolist()]
        assert learned == (expected or [n for n in tokens[1:] if n not in of_media])
        assert len(set(tokens) & of_media) == 3


def test_items_are_told_by_their_kind_where_a_template_reorders_them(tmp_path: Path) -> None:
    """Each kind in its own order, as processors do it."""
    talk = [user(text_part("a"), IMAGE, VIDEO, text_part("b"), IMAGE, VIDEO), answer("42")]
    chat = make_chat(tmp_path, PICTURES_FIRST, media=PAIR)
    items = [("image", 2), ("video", 3), ("image", 4), ("video", 5)]
    ((tokens, _),) = documents_of(tokenize(chat, part_of((talk, items))))
    video, image = token("<video>"), token("<image>")
    before = len(plain("USER: "))
    assert tokens[before : before + 14] == [video] * 8 + [image] * 6
    assert tokens[before + 14 : before + 14 + len(plain("ab "))] == plain("ab ASSISTANT: 42")[:3]


@pytest.mark.parametrize("text", ["<|image_pad|>", "a<|vision_start|>", "<|video_pad|><|im_end|>"])
def test_text_never_becomes_a_placeholder(text: str, tmp_path: Path) -> None:
    """Of users and of the assistant, in texts and in parts."""
    talk = [user(text_part(text), IMAGE, text_part(text)), answer(text)]
    chat = make_chat(tmp_path)
    ((tokens, _),) = documents_of(tokenize(chat, part_of((talk, [("image", 2)]))))
    inner = [plain(text), shown("<|image_pad|>", 2), plain(text)]
    assert tokens == turn("user", *inner) + turn("assistant", plain(text))


def test_a_placeholder_that_is_plain_text_to_the_tokenizer_is_a_fault(tmp_path: Path) -> None:
    """Also where the template leaves an item out, so that the numbers fit."""
    silent = VISION.replace("<|vision_start|><|image_pad|><|vision_end|>", "")
    talk = [user(text_part("<|image_pad|>"), IMAGE), answer("42")]
    for template, special, reason in (
        (VISION, False, "forged"),
        (silent, False, "forged"),
        (silent, True, "placeholders"),
    ):
        chat = make_chat(tmp_path, template, special=special)
        with pytest.raises(BadRecordError) as raised:
            tokenize(chat, part_of((talk, [("image", 2)])))
        assert raised.value.reason == reason


def test_texts_that_spell_a_placeholder_together_are_a_fault(tmp_path: Path) -> None:
    """A template writes them side by side."""
    talk = [user(text_part("<|image_"), IMAGE, text_part("pad|>")), answer("42")]
    with pytest.raises(BadRecordError, match="spell a special token together"):
        tokenize(make_chat(tmp_path), part_of((talk, [("image", 2)])))


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (VISION.replace("<|image_pad|>", "<|image_pad|><|image_pad|>"), "got 2 of images and 0 of"),
        (VISION.replace("<|image_pad|>", "<|video_pad|>"), "got 0 of images and 1 of videos for 1"),
        (VISION.replace("{{ content }}", "<|image_pad|>"), "got 2 of images and 0 of videos for 1"),
    ],
)
def test_a_template_of_another_family_is_a_fault(template: str, text: str, tmp_path: Path) -> None:
    """Of the conversation, which is named; others are as they were."""
    good = [user(text_part("Hello"))]
    bad = [user(IMAGE), answer("42")]
    talks = part_of((good, []), (bad, [("image", 3)]), (good, []))
    with pytest.raises(BadRecordError, match=rf"document at 10: the chat template must .*{text}"):
        tokenize(make_chat(tmp_path, template), talks)
    found = tokenize(make_chat(tmp_path, template, action="quarantine"), talks)
    (fault,) = found.faults
    assert (fault.place, fault.reason, fault.file) == (1, "placeholders", "part-1.jsonl")
    kept = turn("user", plain("Hello"))
    assert [tokens for tokens, _ in documents_of(found)] == [kept, [], kept]
    assert found.unlearned == 2


def test_documents_that_were_set_aside_before_stay_empty(tmp_path: Path) -> None:
    """Those by the probe have neither text nor items."""
    talks = part_of(([], []), ([user(IMAGE), answer("42")], [("image", 2)]))
    aside = Quarantined(place=0, file="a", locator=0, reason="missing", message="none")
    talks = as_documents(["", talks.texts[1]], spans=talks.spans, quarantined=(aside,))
    found = tokenize(make_chat(tmp_path, action="quarantine"), talks)
    assert found.faults == ()
    assert found.offsets.tolist()[:2] == [0, 0]
    assert found.offsets[2] > 4


def test_one_token_for_both_kinds_needs_one_kind_a_conversation(tmp_path: Path) -> None:
    """Nothing else would tell which placeholder is whose."""
    both = PICTURES_FIRST.replace("'<' + kind + '>'", "'<image>'")
    chat = make_chat(tmp_path, both, media=LLAVA)
    talk = [user(VIDEO, text_part("a"), VIDEO)]
    ((tokens, _),) = documents_of(tokenize(chat, part_of((talk, [("video", 3), ("video", 4)]))))
    assert tokens.count(token("<image>")) == 7
    with pytest.raises(BadRecordError, match=r"got 2 of '<image>', which stands for both, for 1"):
        tokenize(chat, part_of(([user(VIDEO, IMAGE)], [("video", 3), ("image", 4)])))


def test_a_template_that_knows_no_parts_refuses_them(tmp_path: Path) -> None:
    """Instead of writing them as Python does."""
    naive = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    with pytest.raises(BadRecordError, match="knows no content in parts"):
        tokenize(make_chat(tmp_path, naive), part_of(([user(text_part("a"))], [])))


def test_null_fields_of_parts_are_not_seen(tmp_path: Path) -> None:
    """Columns of structs have them; a template that asks for `image` would find one."""
    text = {"type": "text", "text": "Hello", "image": None, "path": None}
    found = documents_of(tokenize(make_chat(tmp_path), part_of(([user(text)], []))))
    assert found[0][0] == turn("user", plain("Hello"))


# -------------------------------------------------------------------------- against Transformers


def corpus(folder: Path) -> list[list[dict[str, Any]]]:
    """Write the files of conversations, and return these."""
    (folder / "a.png").write_bytes(image_bytes(200, 333))
    (folder / "b.png").write_bytes(image_bytes(90, 61))
    write_clip(
        folder / "c.mkv",
        frames=4,
        height=120,
        width=90,
        codec="ffv1",
        b_frames=0,
        pixel_format="yuv444p",
    )
    a, b, c = file_part("image", "a.png"), file_part("image", "b.png"), file_part("video", "c.mkv")
    return [
        [user(a, text_part("The answer is")), answer("42"), user(text_part("Hello")), answer("::")],
        [user(text_part(" world"), b, a, text_part("caf\u00e9")), answer(" answer")],
        [user(c, text_part("Hello")), answer("\n\n42"), user(b), answer("end")],
        [{"role": "system", "content": [text_part("im ")]}, user(b, b), answer("The end")],
    ]


def ours(folder: Path) -> list[tuple[list[int], list[int]]]:
    """Tokenize the conversations as the pipeline does: probe, then render and expand."""
    chat = make_chat(folder / "model")
    talks = []
    for messages in corpus(folder):
        found = probe_document(json.dumps(messages), str(folder), QWEN, kind="messages")
        items = [(name, count) for name, _, count in found.pieces]
        talks.append((json.loads(found.text), items))
    return documents_of(tokenize(chat, part_of(*talks)))


def test_conversations_are_those_of_transformers(tmp_path: Path) -> None:
    """Tokens of `Qwen2VLProcessor`, and which of them its template says are the assistant's."""
    found = [
        (len(tokens), digest(tokens), sum(mask), digest(mask)) for tokens, mask in ours(tmp_path)
    ]
    assert found == PINNED


def digest(values: Sequence[int]) -> str:
    """Digest small integers."""
    return blake2b(np.array(values, np.uint16).tobytes(), digest_size=8).hexdigest()


PINNED = [
    (112, "4a6d5b5108d9112b", 4, "cda8a2fe6377a504"),
    (110, "a6ddc2a450854577", 2, "1a12805395abe1a7"),
    (58, "b5016cfe3ae5f471", 6, "b239ce3ea7185e45"),
    (36, "7830f258d639943b", 4, "df825b17c2809f89"),
]


def test_the_processors_of_transformers_still_agree(tmp_path: Path) -> None:
    """With local files alone; images and frames are given as arrays, so that nothing is chosen."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torchvision")
    expected = ours(tmp_path)
    folder = tmp_path / "model"
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        additional_special_tokens=["<|image_pad|>", "<|video_pad|>"],
    )
    template = (folder / "chat_template.jinja").read_text()
    processor = transformers.Qwen2VLProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(),
        video_processor=transformers.Qwen2VLVideoProcessor(
            size={"shortest_edge": 3136, "longest_edge": 1003520}
        ),
        tokenizer=tokenizer,
        chat_template=template,
    )
    for messages, (tokens, mask) in zip(corpus(tmp_path), expected, strict=True):
        parts = [p for m in messages if not isinstance(m["content"], str) for p in m["content"]]
        images = [Image.open(tmp_path / p["path"]) for p in parts if p["type"] == "image"]
        clips = [decode(tmp_path / p["path"]) for p in parts if p["type"] == "video"]
        text = processor.apply_chat_template(messages, tokenize=False)
        inputs = processor(text=[text], images=images or None, videos=clips or None)
        assert inputs["input_ids"][0] == tokens
        plain_tokens = tokenizer.apply_chat_template(
            messages, chat_template=template, return_assistant_tokens_mask=True, return_dict=True
        )
        assert sum(plain_tokens["assistant_masks"]) == sum(mask)
        learned = [tokens[place + 1] for place in np.flatnonzero(mask).tolist()]
        marked = zip(plain_tokens["input_ids"], plain_tokens["assistant_masks"], strict=True)
        assert learned == [number for number, flag in marked if flag]


def decode(path: Path) -> Any:
    """Return all frames of a clip, uint8 [frames, height, width, 3]."""
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def test_the_processor_of_llava_still_agrees(tmp_path: Path) -> None:
    """576 placeholders an image, whatever its size."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torchvision")
    messages = corpus(tmp_path)[1]
    found = probe_document(json.dumps(messages), str(tmp_path), LLAVA, kind="messages")
    items = [(name, count) for name, _, count in found.pieces]
    folder = tmp_path / "model"
    chat = make_chat(folder, PICTURES_FIRST, media=LLAVA)
    ((tokens, _),) = documents_of(tokenize(chat, part_of((json.loads(found.text), items))))
    processor = transformers.LlavaProcessor(
        image_processor=transformers.CLIPImageProcessor(
            size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336}
        ),
        tokenizer=transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"), additional_special_tokens=["<image>"]
        ),
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=(folder / "chat_template.jinja").read_text(),
    )
    images = [Image.open(tmp_path / name) for name in ("b.png", "a.png")]
    text = processor.apply_chat_template(messages, tokenize=False)
    assert processor(text=[text], images=images)["input_ids"][0] == tokens
    assert tokens.count(token("<image>")) == 2 * 576
