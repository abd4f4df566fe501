"""`zephon-beam gc STREAM`."""

import argparse

from pipelines.commands.texts import count, write_json, write_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "Deletes the shards and lane states behind the pins of all consumers, which trainers move "
        "by StreamReader.acknowledge. Whatever a pinned checkpoint needs stays. Temporary "
        "files of processes that were killed are deleted, too."
    )
    parser.add_argument("stream", metavar="STREAM", help="path or URI of the stream")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
    parser.add_argument(
        "--forget",
        action="append",
        default=[],
        metavar="NAME",
        help="first forget this consumer, whose run is over; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Find what nobody needs, and delete it."""
    from zephon_beam.consumers import read_consumers
    from zephon_beam.errors import RecipeError
    from zephon_beam.layout import consumer_name
    from zephon_beam.manifest import read_manifest
    from zephon_beam.retention import delete_garbage, find_garbage
    from zephon_beam.store.base import open_store

    store = open_store(args.stream)
    manifest = read_manifest(store)
    for name in args.forget:
        if not store.exists(consumer_name(name)):
            known = [consumer.name for consumer in read_consumers(store)]
            raise RecipeError(
                f"--forget must name a consumer of the stream, got {name!r}; there is nothing to "
                f"forget; its consumers are {', '.join(known) or 'none'}"
            )
    consumers = [c for c in read_consumers(store) if c.name not in args.forget]
    garbage = find_garbage(store, manifest, consumers)
    stray_files = store.remove_strays(only_count=args.dry_run)
    facts = {
        "consumers": {c.name: {"position": c.position, "pins": dict(c.pins)} for c in consumers},
        "first_shards": list(garbage.first_shards),
        "objects": len(garbage.names),
        "stray_files": stray_files,
        "deleted": not args.dry_run,
    }
    if not args.dry_run:
        for name in args.forget:
            store.delete(consumer_name(name))
        delete_garbage(store, manifest, garbage)
    if args.json:
        write_json(facts)
        return 0
    for name in garbage.names if args.dry_run else ():
        write_line(name)
    for consumer in consumers:
        pins = ", ".join(f"{pin} at {count(at)}" for pin, at in consumer.pins.items())
        write_line(
            f"consumer {consumer.name}: at sample {count(consumer.position)}, pins: "
            f"{pins or 'none yet, so everything is kept'}"
        )
    if not consumers:
        write_line("no consumers: nobody has said what it needs, so every shard is kept")
    verb = "would be deleted" if args.dry_run else "deleted"
    write_line(f"objects {verb}: {count(len(garbage.names))}")
    if stray_files:
        write_line(f"temporary files {verb}: {count(stray_files)}")
    return 0
