"""A Flink cluster on this machine: one job manager, task managers with a slot each, job server."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.engines.processes import Process, free_ports, is_listening, wait_until
from pipelines.engines.software import jar_folder

_JOB_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
_TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
_JOB_SERVER = "org.apache.beam.runners.flink.FlinkJobServerDriver"
# Flink reaches into these packages, which Java 17 closes.
_OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.net", "java.io", "java.nio"),
    *("sun.nio.ch", "java.text", "java.time", "java.util", "java.util.concurrent"),
    *("java.util.concurrent.atomic", "java.util.concurrent.locks"),
)
# Small JVMs that start fast; the sizes of a task manager have to be stated in full, since Flink's
# own scripts, which would derive them, are not used. Until two heartbeats have failed, a restarted
# job is sent to the slot of a dead task manager again, and each time is an attempt: they come
# often, and there are more attempts than the seconds that takes.
_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xms64m")
_CONFIGURATION = """\
jobmanager.rpc.address: localhost
jobmanager.rpc.port: {rpc}
jobmanager.bind-host: localhost
rest.address: localhost
rest.bind-address: localhost
rest.port: {rest}
taskmanager.host: localhost
taskmanager.bind-host: localhost
taskmanager.numberOfTaskSlots: 1
taskmanager.cpu.cores: 1
taskmanager.memory.framework.heap.size: 128m
taskmanager.memory.framework.off-heap.size: 128m
taskmanager.memory.task.heap.size: 384m
taskmanager.memory.task.off-heap.size: 128m
taskmanager.memory.network.min: 64m
taskmanager.memory.network.max: 64m
taskmanager.memory.managed.size: 128m
taskmanager.memory.jvm-metaspace.size: 256m
taskmanager.memory.jvm-overhead.min: 192m
taskmanager.memory.jvm-overhead.max: 192m
heartbeat.interval: 500
heartbeat.rpc-failure-threshold: 2
heartbeat.timeout: 30000
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: 10
restart-strategy.fixed-delay.delay: 1 s
classloader.resolve-order: parent-first
classloader.check-leaked-classloader: false
state.checkpoints.dir: file://{folder}/checkpoints
io.tmp.dirs: {folder}/tmp
web.upload.dir: {folder}/tmp
"""


class FlinkCluster:
    """A cluster that runs; its processes end with the block that made it."""

    def __init__(self, folder: Path, task_managers: int) -> None:
        """Start the processes; what they write is in `folder`."""
        self.task_managers: list[Process] = []
        self._folder = folder
        self._count = task_managers
        rpc, self._rest, self._job = free_ports(3)
        (folder / "tmp").mkdir(parents=True)
        (folder / "flink-conf.yaml").write_text(
            _CONFIGURATION.format(rpc=rpc, rest=self._rest, folder=folder)
        )
        conf = ("--configDir", str(folder))
        self._servers = [self._java("job-manager", "384m", _JOB_MANAGER, *conf)]
        for _ in range(task_managers):
            self.add_task_manager()
        self._servers.append(
            self._java(
                *("job-server", "512m", _JOB_SERVER, f"--flink-master={self.master}"),
                *(f"--job-port={self._job}", "--job-host=localhost"),
                *("--artifact-port=0", "--expansion-port=0"),
                f"--artifacts-dir={folder / 'artifacts'}",
            )
        )

    @property
    def master(self) -> str:
        """Return the address of the cluster, as `--flink_master` takes it."""
        return f"localhost:{self._rest}"

    @property
    def job_endpoint(self) -> str:
        """Return the address of Beam's job server, as `--job_endpoint` takes it."""
        return f"localhost:{self._job}"

    @property
    def restart_count(self) -> int:
        """Return how often jobs have been started again since the cluster was."""
        text = self._servers[0].log.read_text(errors="replace")
        return text.count("switched from state RUNNING to RESTARTING")

    @property
    def processes(self) -> list[Process]:
        """Return all processes that were started and not killed."""
        return [*self._servers, *self.task_managers]

    def add_task_manager(self) -> Process:
        """Start one more task manager."""
        number = sum(1 for _ in self._folder.glob("task-manager-*.log"))
        started = self._java(
            *(f"task-manager-{number}", "512m", _TASK_MANAGER),
            *("--configDir", str(self._folder), "-D", f"taskmanager.resource-id=tm-{number}"),
        )
        self.task_managers.append(started)
        return started

    def kill_task_manager(self) -> None:
        """Kill the oldest task manager, as a crash of its machine would."""
        self.task_managers.pop(0).kill()

    def wait(self) -> None:
        """Wait until every task manager has offered its slot and the job server listens."""
        wait_until(self._has_slots, self.processes, "the Flink cluster")
        wait_until(lambda: is_listening(self._job), self.processes, "Beam's job server")

    def stop(self) -> None:
        """End all processes."""
        for process in reversed(self.processes):
            process.stop()

    def _has_slots(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.master}/overview", timeout=5) as answer:
                return bool(json.load(answer)["slots-total"] >= self._count)
        except OSError:
            return False

    def _java(self, name: str, heap: str, main: str, *words: str) -> Process:
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        jars = str(jar_folder("flink") / "*")
        log = self._folder / f"{name}.log"
        return Process(["java", *_JVM, f"-Xmx{heap}", *opened, "-cp", jars, main, *words], log)


@contextmanager
def flink_cluster(folder: Path, *, task_managers: int = 2) -> Iterator[FlinkCluster]:
    """Run a cluster while the block runs; its software must be there (see `software.require`)."""
    cluster = FlinkCluster(folder, task_managers)
    try:
        cluster.wait()
        yield cluster
    finally:
        cluster.stop()
