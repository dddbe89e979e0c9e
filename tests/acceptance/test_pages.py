"""The programs of the README and of docs/ run as they stand there, page by page."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import HPO, Service, await_fact, free_port, serve
from tests.pages import BLOCKS, PAGES, Block, block_with, write_files

ADDRESS = "localhost:8080"
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")  # folders of nginx
RUNS = [b for b in BLOCKS if b.language in ("sh", "py") and not b.has_own_test]
MODULES = ["objectives.*", "my_spirals"]
RUNNING = [page for page in PAGES if any(block.page == page for block in RUNS)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for all pages, with their files in its folder and their objectives on offer.

    Its database lies where that of `hpo up` does.
    """
    folder = tmp_path_factory.mktemp("pages")
    (folder / "hpo-data").mkdir()
    for page in PAGES:
        write_files(page, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HPO_ALLOW_HOST", "hpo.example")
        for service in serve(f"sqlite:///{folder}/hpo-data/hpo.db", folder):
            own = [word for module in MODULES for word in ("--allow", module)]
            service.start_worker("--code", str(folder), "--slots", "2", *own)
            yield service


@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.name)
def test_programs_of_a_page_run(page: Path, service: Service) -> None:
    mine = [block for block in RUNS if block.page == page]
    for program in ("curl", "jq", "sqlite3"):
        if any(program in block.text for block in mine) and shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    for block in mine:
        run(block, service)


def run(block: Block, service: Service) -> None:
    text = block.text.replace(f"http://{ADDRESS}", service.url).replace(ADDRESS, service.url)
    shell = ["bash", "-euo", "pipefail", "-c"] if block.language == "sh" else [sys.executable, "-c"]
    path = f"{Path(HPO).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [*shell, text],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=service.folder,
        env={**os.environ, "HPO_URL": service.url, "PATH": path, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"


def test_the_proxy_of_the_guide_carries_the_service(service: Service, tmp_path: Path) -> None:
    for program in ("nginx", "openssl", "curl"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    port, folder = free_port(), tmp_path / "proxy"
    folder.mkdir()
    key, certificate = folder / "hpo.example.key", folder / "hpo.example.pem"
    names = ["-subj", "/CN=hpo.example", "-addext", "subjectAltName=DNS:hpo.example"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names, *files]
    subprocess.run(made, check=True, capture_output=True)
    server = (
        block_with("nginx", "server {")
        .replace("listen 443", f"listen 127.0.0.1:{port}")
        .replace("http://127.0.0.1:8080", service.url)
        .replace("/etc/ssl/", f"{folder}/")
    )
    own = " ".join(f"{name}_temp_path {folder}/{name};" for name in TEMPORARY)
    text = f"pid {folder}/pid; error_log {folder}/log; daemon off; events {{}}\n"
    text += f"http {{ access_log off; {own}\n{server} }}\n"
    (folder / "nginx.conf").write_text(text, encoding="utf-8")
    proxy = subprocess.Popen(["nginx", "-c", str(folder / "nginx.conf"), "-p", str(folder)])
    try:
        at = ["--cacert", str(certificate), "--resolve", f"hpo.example:{port}:127.0.0.1"]
        await_fact((folder / "pid").exists, what="for nginx")
        asked = ["curl", "-sf", *at, f"https://hpo.example:{port}/v1/studies"]
        done = subprocess.run(asked, capture_output=True, text=True)
        assert '"items":[' in done.stdout, done
    finally:
        proxy.terminate()
        proxy.wait(timeout=30)
