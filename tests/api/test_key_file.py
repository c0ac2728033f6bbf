"""The file of keys: what it may hold, how it changes under the service, and the rates that it sets."""

import gc
import logging
import os
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from support.keys import KEYS, key_table, write_keys

from bandrank.api.keys import KeyFile
from bandrank.errors import BadSetting


def test_a_client_goes_by_the_name_and_the_share_of_its_key(tmp_path: Path) -> None:
    """A prefix keeps the name of a key apart from any address."""
    keys = KeyFile(write_keys(tmp_path / "keys.toml", **{"127-0-0-1": key_table("rank", share=0.25)}))
    found = keys.find(KEYS["rank"].encode())

    assert found is not None
    assert (found.client.name, found.client.share) == ("key:127-0-0-1", 0.25)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, " cannot be read: No such file or directory"),
        ("[search]\nsha256 = SECRET", " is not valid TOML: at line 2, column 10"),
        ("[search]\nsha256 = 'SECRET", " is not valid TOML: at "),
        ("[search]\n[search]\n", " is not valid TOML: the name of a key comes twice, at line 2, column 8"),
        ("[search]\nscopes = ['rank']", ": search.sha256 is missing"),
        ("[search]\nsha256 = 'SECRET'\nscopes = ['rank']", ": search.sha256 must be 64 hexadecimal digits"),
        (
            "[search]\nSECRET = 1\nsha256 = 'DIGEST'\nscopes = ['rank']",
            ": search has a field that is not one of sha256, ",
        ),
        ("[search]\nsha256 = 'DIGEST'", ": search.scopes is missing"),
        ("[search]\nsha256 = 'DIGEST'\nscopes = []", ": search.scopes must have at least 1 item"),
        ("[search]\nsha256 = 'DIGEST'\nscopes = 'rank'", ": search.scopes must be a valid list"),
        ("[search]\nsha256 = 'DIGEST'\nscopes = ['SECRET']", ": search.scopes must be 'rank', 'register' or 'admin'"),
        ("[search]\nsha256 = 'DIGEST'\nscopes = ['rank']\nshare = 1.0", ": search.share must be less than 1"),
        (
            "[search]\nsha256 = 'DIGEST'\nscopes = ['rank']\nrequests_per_s = 0",
            ": search.requests_per_s must be greater",
        ),
        (
            "[search]\nsha256 = 'DIGEST'\nscopes = ['rank']\nrequests_per_s = inf",
            ": search.requests_per_s must be a finite",
        ),
        ("search = 'SECRET'", ": search must be a table"),
        ("['SECRET is a name']\nsha256 = 'DIGEST'\nscopes = ['rank']", ": table 1 has a name that is not "),
        (
            "[one]\nsha256='DIGEST'\nscopes=['rank']\n[two]\nsha256='digest'\nscopes=['rank']",
            ": two.sha256 must differ from that of one",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_name(text: str | None, expected: str, tmp_path: Path) -> None:
    """The message names the file, the table and the fault, and repeats nothing that may be a key."""
    path = tmp_path / "keys.toml"
    if text is not None:
        path.write_text(text.replace("DIGEST", "AB" * 32).replace("digest", "ab" * 32), encoding="utf-8")

    with pytest.raises(BadSetting) as refused:
        KeyFile(str(path))
    assert str(refused.value).startswith(f"{path}{expected}")
    assert "SECRET" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_changed_file_counts_at_once_and_a_broken_one_never(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A removed key stops working, and a file that cannot be read changes nothing and is logged once."""
    now = 0.0
    path = tmp_path / "keys.toml"
    keys = KeyFile(write_keys(path, one=key_table("rank"), two=key_table("admin")), clock=lambda: now)

    def known() -> list[bool]:
        nonlocal now
        now += 1.0
        return [keys.find(KEYS[name].encode()) is not None for name in ("rank", "register", "admin")]

    assert known() == [True, False, True]
    write_keys(path, one=key_table("rank"))
    assert known() == [True, False, False]
    with caplog.at_level(logging.ERROR):
        for broken in ("[one", f"[one]\nsha256 = '{KEYS['rank']}'"):
            caplog.clear()
            path.write_text(broken, encoding="utf-8")
            assert [known() for _ in range(3)] == [[True, False, False]] * 3
            assert [record.levelname for record in caplog.records] == ["ERROR"]
            assert str(path) in caplog.text
            assert not any(key in caplog.text for key in KEYS.values())
        caplog.clear()
        path.unlink()
        assert [known() for _ in range(3)] == [[True, False, False]] * 3
        assert len(caplog.records) == 1
    replaced = tmp_path / "new.toml"
    write_keys(replaced, three=key_table("register"))
    os.utime(replaced, ns=(0, 0))
    replaced.rename(path)
    with caplog.at_level(logging.INFO):
        assert known() == [False, True, False]
    assert caplog.messages[-1] == "read again: the keys three"
    path.write_text("", encoding="utf-8")
    with caplog.at_level(logging.INFO):
        assert known() == [False, False, False]
    assert caplog.messages[-1] == "read again: the file of keys is empty, so nobody is admitted"


def test_the_file_is_looked_at_once_a_second(tmp_path: Path) -> None:
    now = 0.0
    path = tmp_path / "keys.toml"
    keys = KeyFile(write_keys(path, one=key_table("rank")), clock=lambda: now)
    write_keys(path, one=key_table("register"))
    now = 0.9
    assert keys.find(KEYS["rank"].encode()) is not None
    now = 1.0
    assert keys.find(KEYS["rank"].encode()) is None


@pytest.mark.parametrize("key", ["none", "tenant 999"])
def test_a_key_is_found_in_as_many_steps_among_many(key: str, tmp_path: Path) -> None:
    """If the search took a step per key, requests with invented keys would hold everybody up."""

    def steps(count: int) -> int:
        tables = {
            f"tenant-{number}": f'sha256 = "{sha256(b"tenant %d" % number).hexdigest()}"\nscopes = ["rank"]\n'
            for number in range(1000 - count, 1000)
        }
        keys = KeyFile(write_keys(tmp_path / f"{count}.toml", **tables))
        taken: list[str] = []
        gc.disable()  # a collection of garbage has steps of its own
        sys.setprofile(lambda _, event, __: taken.append(event))
        try:
            found = keys.find(key.encode())
        finally:
            sys.setprofile(None)
            gc.enable()
        assert (found is None) == (key == "none")
        return len(taken)

    assert steps(300) == steps(1)


def test_the_rate_of_a_key_survives_a_change_of_others(tmp_path: Path) -> None:
    """A key's used budget stays used while other keys change; a key whose own rate changes starts afresh."""
    now = 0.0
    path = tmp_path / "keys.toml"
    keys = KeyFile(write_keys(path, one=key_table("rank", requests_per_s=0.01)), clock=lambda: now)

    def take() -> float:
        found = keys.find(KEYS["rank"].encode())
        assert found is not None
        assert found.bucket is not None
        return found.bucket.take()

    assert take() == 0
    write_keys(path, one=key_table("rank", requests_per_s=0.01), two=key_table("admin"))
    now = 10.0
    assert take() == pytest.approx(90)
    assert keys.names == ["one", "two"]
    write_keys(path, one=key_table("rank", requests_per_s=0.02), two=key_table("admin"))
    now = 20.0
    assert take() == 0


def test_a_bucket_holds_a_second_of_its_rate(tmp_path: Path) -> None:
    """A rate of 3 per second allows three requests at once, then one each third of a second; 0.5 allows one at once."""
    now = 0.0
    path = write_keys(
        tmp_path / "keys.toml", one=key_table("rank", requests_per_s=3), two=key_table("admin", requests_per_s=0.5)
    )
    keys = KeyFile(path, clock=lambda: now)
    fast, slow = (keys.find(KEYS[name].encode()) for name in ("rank", "admin"))
    assert fast is not None
    assert slow is not None
    assert fast.bucket is not None
    assert slow.bucket is not None

    now = 100.0
    assert [fast.bucket.take() for _ in range(3)] == [0, 0, 0]
    assert fast.bucket.take() == pytest.approx(1 / 3)
    assert (slow.bucket.take(), slow.bucket.take()) == (0, 2)
    now += 0.34
    assert (fast.bucket.take(), fast.bucket.take() > 0) == (0, True)
