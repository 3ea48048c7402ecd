"""Run folders belong to this user, and no other files are removed, even if another user has prepared the folder."""

from __future__ import annotations

import json
import os
import stat
import time

import psutil
import pytest

from tailrace.embedded import run_folders

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="this system has no owners and modes of files")
LONG_AGO = time.time() - 86_400


def abandoned_run(folder):
    """Create the folder of a run whose process no longer exists."""
    folder.mkdir(mode=0o700, parents=True)
    (folder / "precious").write_text("data")
    (folder / "owner.json").write_text(json.dumps({"pid": psutil.Process().pid, "created": 1.0}))
    os.utime(folder, (LONG_AGO, LONG_AGO))
    return folder / "precious"


def test_a_link_to_another_folder_is_not_followed(temporary, tmp_path):
    """If the folder of runs is a link to another folder, this one is neither used nor removed."""
    victim = tmp_path / "victim"
    kept = abandoned_run(victim / "project")
    (victim / "old").mkdir()
    os.utime(victim / "old", (LONG_AGO, LONG_AGO))
    victim.chmod(0o700)
    run_folders.runs_folder().symlink_to(victim, target_is_directory=True)

    run = run_folders.new_run_folder()

    assert kept.read_text() == "data"
    assert (victim / "old").is_dir()
    assert not run.resolve().is_relative_to(victim)
    assert stat.S_IMODE(run.parent.stat().st_mode) == 0o700


def test_a_folder_that_others_may_enter_is_not_used(temporary):
    """An existing folder with mode 0777, which would expose the keys of a run, is not used."""
    prepared = run_folders.runs_folder()
    kept = abandoned_run(prepared / "run")
    prepared.chmod(0o777)

    run = run_folders.new_run_folder()

    assert kept.read_text() == "data"
    assert prepared not in run.parents
    assert stat.S_IMODE(run.parent.stat().st_mode) == 0o700
    run_folders.remove_run_folder(run)
    assert not run.parent.exists()


def test_only_folders_of_runs_are_removed(temporary):
    """Links, and folders without the identifying file, are not removed."""
    parent = run_folders.runs_folder()
    gone = abandoned_run(parent / "gone")
    other = parent / "other"
    other.mkdir(mode=0o700)
    (other / "data").write_text("data")
    os.utime(other, (LONG_AGO, LONG_AGO))
    linked = abandoned_run(temporary.folder / "elsewhere")
    (parent / "link").symlink_to(linked.parent, target_is_directory=True)
    parent.chmod(0o700)

    assert run_folders.reap() == [gone.parent]

    assert not gone.exists()
    assert (other / "data").read_text() == "data"
    assert linked.read_text() == "data"


def test_folders_of_killed_runs_with_another_base_are_removed(temporary):
    """Folders of killed runs are removed, also if their base folder has another name."""
    prepared = run_folders.runs_folder()
    prepared.mkdir()
    prepared.chmod(0o777)
    run = run_folders.new_run_folder()
    (run / "owner.json").write_text(json.dumps({"pid": psutil.Process().pid, "created": 1.0}))

    assert run_folders.reap() == [run]
    assert not run.parent.exists()
