"""Where output can go, and that what stood there before is not destroyed."""

import gzip
import os

import pytest

from warrant_hf.whole_file import check_target, replaced_when_complete


def write(path, text="new"):
    with replaced_when_complete(path) as file:
        file.write(text)


def test_plain_and_compressed(tmp_path):
    for name in ("a.jsonl", "b.jsonl.gz", "c" * 255):
        write(tmp_path / name)
    assert (tmp_path / "a.jsonl").read_text() == "new"
    assert gzip.decompress((tmp_path / "b.jsonl.gz").read_bytes()) == b"new"
    assert len(os.listdir(tmp_path)) == 3


def test_a_block_that_fails_changes_nothing(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(KeyboardInterrupt), replaced_when_complete(tmp_path / "a") as file:
        file.write("new")
        raise KeyboardInterrupt
    assert (tmp_path / "a").read_text() == "old" and os.listdir(tmp_path) == ["a"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "there")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "there").read_text() == "new"


def test_checking_leaves_no_trace(tmp_path):
    assert check_target(tmp_path / "a") == tmp_path.resolve() / "a"
    check_target(tmp_path / "x" / "y" / "a", create_folder=True)
    assert os.listdir(tmp_path) == ["x"] and os.listdir(tmp_path / "x" / "y") == []


@pytest.mark.skipif(os.name != "posix", reason="pipes and circular links as POSIX has them")
def test_places_that_take_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("x")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for path, message in {
        tmp_path: "is a folder or a device; give the name of a file",
        tmp_path / "pipe": "is a folder or a device",  # as /dev/null is: a file must not take its place
        tmp_path / "no" / "a": "the folder .*no does not exist; create it first",
        tmp_path / "file" / "a": "the folder .*file does not exist",
        tmp_path / "circle": "cannot be written|is a folder or a device",
        tmp_path / ("a" * 256): "cannot be written \\(File name too long\\)|the file name is too long",
    }.items():
        with pytest.raises(ValueError, match=message):
            check_target(path)
    with pytest.raises(ValueError, match="cannot be written .*; give another place"):
        check_target(tmp_path / "file" / "a", create_folder=True)
