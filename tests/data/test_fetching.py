"""Published files: told where they are, checked, and downloaded only on request."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from c4rl.core.errors import InputError
from c4rl.data import fetching
from c4rl.data.fetching import PublishedFile, check_file, download
from tests.cli.support import run

CONTENT = bytes(range(256)) * 40


class Handler(BaseHTTPRequestHandler):
    asked: list[str | None]
    most: int | None  # bytes that it sends before it hangs up
    page: bytes | None  # what it sends instead

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        type(self).asked.append(wanted)
        if self.page is not None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(self.page)))
            self.end_headers()
            self.wfile.write(self.page)
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        self.wfile.write(CONTENT[start:][: self.most])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Iterator[PublishedFile]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    Handler.asked, Handler.most, Handler.page = [], None, None
    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/hopper.hdf5"
    yield PublishedFile(url, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_interrupted_download_goes_on_where_it_was(published: PublishedFile, tmp_path: Path) -> None:
    (tmp_path / "a.hdf5.part").write_bytes(CONTENT[:1000])
    download(published, tmp_path / "a.hdf5")
    assert (tmp_path / "a.hdf5").read_bytes() == CONTENT
    assert Handler.asked == ["bytes=1000-"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.hdf5"]


def test_a_server_that_hangs_up_leaves_something_to_go_on_with(published: PublishedFile, tmp_path: Path) -> None:
    Handler.most = 6000
    with pytest.raises(InputError, match=r"stopped after 6,000 of 10,240 bytes\); run the command again to resume "):
        download(published, tmp_path / "a.hdf5")
    assert [path.name for path in tmp_path.iterdir()] == ["a.hdf5.part"]
    download(published, tmp_path / "a.hdf5")
    assert (tmp_path / "a.hdf5").read_bytes() == CONTENT and Handler.asked == [None, "bytes=6000-"]


def test_a_page_instead_of_the_file_spoils_no_begun_download(published: PublishedFile, tmp_path: Path) -> None:
    (tmp_path / "a.hdf5.part").write_bytes(CONTENT[:1000])
    Handler.page = b"Down for maintenance"
    with pytest.raises(InputError, match=r"hopper\.hdf5: found 20 bytes, expected 10,240"):
        download(published, tmp_path / "a.hdf5")
    assert (tmp_path / "a.hdf5.part").read_bytes() == CONTENT[:1000]


def test_other_bytes_than_published_are_refused(published: PublishedFile, tmp_path: Path) -> None:
    (tmp_path / "a.hdf5.part").write_bytes(b"x" * 1000)
    with pytest.raises(InputError, match="found sha256"):
        download(published, tmp_path / "a.hdf5")
    assert not list(tmp_path.iterdir())
    (tmp_path / "b.hdf5").write_bytes(CONTENT[:-1])
    with pytest.raises(InputError, match=r"found 10,239 bytes, expected the 10,240 of hopper\.hdf5"):
        check_file(published, tmp_path / "b.hdf5")


def test_the_command_tells_checks_and_downloads_by_name_alone(
    published: PublishedFile, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "published_file", lambda task: published)
    monkeypatch.chdir(tmp_path)
    assert run("data", "fetch", "hopper-medium") == 0
    assert published.url in capsys.readouterr().out
    assert Handler.asked == [] and not list(tmp_path.iterdir())
    assert run("data", "fetch", "hopper-medium", "--download") == 0
    assert run("data", "fetch", "hopper-medium") == 0
    assert "checksum are right" in capsys.readouterr().out
    assert run("data", "fetch", "hopper-medium", "--download") == 2
    assert "exists already" in capsys.readouterr().err
    assert Handler.asked == [None]


def test_a_file_without_known_checksum_is_not_downloaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("data", "fetch", "kitchen-mixed", "--download", "--output", tmp_path / "a.hdf5") == 2
    assert "no size and checksum are known" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
