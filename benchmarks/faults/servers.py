"""Run Debian's PostgreSQL server for a test, on a free port of this machine."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

SECONDS = 60  # time limit for a server to start or stop
OWNER, CLIENT = "olga", "claire"  # roles: owner of the tables; may charge
# processes that run at the same time begin 97 ports apart
_PORTS = count(97 * os.getpid())
GRANTS = (
    f"CREATE ROLE {CLIENT} LOGIN PASSWORD 'secret'",
    f"GRANT USAGE ON SCHEMA dphead TO {CLIENT}",
    f"GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA dphead TO {CLIENT}",
)


def programs() -> Path | None:
    """Return the folder of PostgreSQL's programs, or None if they are missing."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found += [Path(path) for path in filter(None, [shutil.which("initdb")])]
    return found[0].parent if found else None


class Server:
    """Run a server with its files in a temporary folder. Use a `with` block."""

    def __init__(self) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="dphead-postgres-"))
        self.data = self.folder / "data"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Server":
        if os.geteuid() == 0:  # initdb refuses to run as root
            shutil.chown(self.folder, "postgres", "postgres")
        made = (
            "-D",
            self.data,
            "-U",
            OWNER,
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-locale",
        )
        subprocess.run(
            [*_as_user(), self._program("initdb"), *map(str, made)],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self.folder,
        )
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder)

    def _program(self, name: str) -> str:
        folder = programs()
        assert folder is not None
        return str(folder / name)

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        settings = (f"port={self.port}", "listen_addresses=127.0.0.1")
        settings += (f"unix_socket_directories={self.folder}", "max_connections=60")
        flags = [word for each in settings for word in ("-c", each)]
        self._process = subprocess.Popen(
            [*_as_user(), self._program("postgres"), "-D", str(self.data), *flags],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
        )
        ready = (self._program("pg_isready"), "-h", "127.0.0.1", "-t", str(SECONDS))
        while subprocess.run(
            [*ready, "-p", str(self.port)], stdout=subprocess.DEVNULL
        ).returncode:
            if self._process.poll() is not None:
                raise AssertionError("PostgreSQL ended instead of starting")

    def stop(self, how: int = signal.SIGINT) -> None:
        """Stop the server and cut off clients. SIGQUIT acts like a power failure."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(SECONDS)

    def url(self, user: str = OWNER, port: int | None = None) -> str:
        """Return the server's URL for a role."""
        return f"postgresql://{user}:secret@127.0.0.1:{port or self.port}/postgres"

    def run(self, statement: str) -> list[tuple[object, ...]]:
        """Run a statement as the owner of the server."""
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as connection:
            found = connection.execute(statement.encode())
            return found.fetchall() if found.description else []

    def reload(self) -> None:
        """Read settings and rules again; new connections have them from now on."""
        read = "SELECT pg_conf_load_time()"
        before = self.run(read)
        self.run("SELECT pg_reload_conf()")
        while self.run(read) == before:
            time.sleep(0.01)

    def end_clients(self, which: str = f"usename = '{CLIENT}'") -> None:
        """End connections, and wait until they are closed."""
        end = f"SELECT pg_terminate_backend(pid, {1000 * SECONDS})"
        self.run(f"{end} FROM pg_stat_activity WHERE {which}")


def _as_user() -> list[str]:
    if os.geteuid():
        return []
    user = pwd.getpwnam("postgres")
    ids = (f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
    return ["setpriv", *ids]


def free_port() -> int:
    """Return a port that no process listens on.

    It is below the ports of outgoing connections: one of these could take it before the
    server listens on it.
    """
    while True:
        port = 10_000 + next(_PORTS) % 20_000
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Cutter:
    """Pass a client's connections to a server, and break one at the client's COMMIT.

    answered: whether the COMMIT reaches the server; its answer never arrives.
    seconds: time after which every connection is broken.
    """

    def __init__(
        self, server: int, answered: bool = False, seconds: float | None = None
    ) -> None:
        self._server, self._answered, self._seconds = server, answered, seconds
        self.armed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server))
                cut = threading.Event()
                if self._seconds is not None:
                    threading.Timer(self._seconds, _break, (client, server)).start()
                for ends in ((client, server), (server, client)):
                    threading.Thread(
                        target=self._pass, args=(*ends, ends[0] is client, cut)
                    ).start()

    def _pass(
        self,
        source: socket.socket,
        target: socket.socket,
        from_client: bool,
        cut: threading.Event,
    ) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if from_client and self.armed and b"COMMIT\0" in data:
                    self.armed = False
                    cut.set()
                    if self._answered:
                        target.sendall(data)
                        target.recv(1)
                    break
                if cut.is_set():
                    break
                target.sendall(data)
        _break(source, target)
        for end in (source, target):
            end.close()

    def close(self) -> None:
        """Take no more connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _break(*ends: socket.socket) -> None:
    """End a connection at once, in both directions."""
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
